"""What Triton has ready, asked in threads of their own: a slow answer never keeps the loop.

Tested by tests/engine/test_rounds.py.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from transformer_serving.engine.controller.faults import Faults
from transformer_serving.engine.controller.triton.server import Triton, TritonAway

Loaded = Mapping[str, frozenset[int]]

_log = logging.getLogger(__name__)
# A Triton that hangs must not make the loop look hung, too.
_LOOK_S = 1.0
# One that is late is most often busy, and has what it had; a call that hangs ends after 5 s.
_KEPT_S = 5.0


class Look:
    """`version` is Triton's own, None while it is away; `greet` is told it at each start of one,
    of which there were `starts` since this controller's own.
    Dead versions that are `in_grace` are not unloaded with their models.
    """

    def __init__(
        self,
        triton: Triton,
        greet: Callable[[str], None],
        in_grace: Callable[[str, int], bool],
        faults: Faults,
    ) -> None:
        self._triton = triton
        self._greet = greet
        self._in_grace = in_grace
        self._faults = faults
        self._looks = ThreadPoolExecutor(1, "look")
        # Each of them may take seconds.
        self._questions = ThreadPoolExecutor(1, "suspects")
        self._asking: Future[Loaded | None] | None = None
        self._asking_since = 0.0
        self._questioning: Future[None] | None = None
        self._loaded: Loaded | None = None
        self._answered = 0.0
        self.version: str | None = None
        self.starts = 0
        # What happened later is not in the answer; on time.monotonic's clock.
        self.asked_at = 0.0

    def now(self) -> Loaded | None:
        """The ready versions of every model; None when Triton is away, or has long said nothing."""
        if self._asking is None:
            self._asking_since = time.monotonic()
            self._asking = self._looks.submit(self._ask)
        if wait([self._asking], _LOOK_S).done:
            self._loaded, self.asked_at = self._asking.result(), self._asking_since
            self._asking, self._answered = None, time.monotonic()
            if self._loaded is not None:
                self._question_suspects()
        elif time.monotonic() - self._answered > _KEPT_S:
            self._loaded = None
        return self._loaded

    def _ask(self) -> Loaded | None:
        with self._faults.noted("Triton's processes"):
            for model in self._triton.end_stuck_loads():
                _log.error("%s: its backend process died as it loaded; Triton is restarted", model)
        with self._faults.noted("what Triton has ready"):
            try:
                if self.version is None:
                    self._meet(self._triton.version())
                # Before it is known where this runs, nothing can be told to be proven here.
                return None if self.version is None else self._triton.loaded()
            except TritonAway:
                self.version = None
        return None

    def _meet(self, version: str) -> None:
        with self._faults.noted("what this machine is"):
            self._greet(version)
            self.version = version
            self.starts += 1

    def _question_suspects(self) -> None:
        if self._questioning is None or self._questioning.done():
            self._questioning = self._questions.submit(self._unload_dead)

    def _unload_dead(self) -> None:
        # Without a Triton there is none to unload.
        with self._faults.noted("which models died"), contextlib.suppress(TritonAway):
            for model in self._triton.unload_dead(self._in_grace):
                _log.error("%s: its backend process died; it is loaded again", model)
