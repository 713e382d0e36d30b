"""Faults that must not end the controller: told in its log, and tried again at the next round.

Tested by tests/engine/test_rounds.py.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future

from transformer_serving.engine.controller.failures import reason_of
from transformer_serving.engine.errors import EngineError

_log = logging.getLogger(__name__)
# The same fault comes with every round.
_AGAIN_S = 300.0


class Faults:
    """Used from several threads."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[object, float]] = {}

    @contextlib.contextmanager
    def noted(self, doing: str) -> Iterator[None]:
        """What the block raises ends the block, and nothing else."""
        try:
            yield
        except Exception as error:
            self._tell(doing, error)

    def submit(self, pool: Executor, doing: str, step: Callable[[], object]) -> Future[None]:
        """For a step of which nobody asks how it ended."""

        def run() -> None:
            with self.noted(doing):
                step()

        return pool.submit(run)

    def _tell(self, doing: str, error: Exception) -> None:
        """Of its text nothing is compared: it may name a file that each try calls otherwise."""
        what, now = (type(error), getattr(error, "errno", None)), time.monotonic()
        before, at = self._told.get(doing, (None, now))
        if what != before or now - at > _AGAIN_S:
            self._told[doing] = what, now
            known = isinstance(error, EngineError | OSError)
            _log.error("%s: %s", doing, reason_of(error), exc_info=None if known else error)
