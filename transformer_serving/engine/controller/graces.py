"""Ends the grace of a version that died: unloaded as a model, it would take along what serves.

Tested by tests/engine/test_graces.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from transformer_serving.engine.controller.records import ModelRecord
from transformer_serving.engine.controller.state import StateFile

_log = logging.getLogger(__name__)


class Graces:
    """`has` is for the thread that looks for dead models, `end` for the loop. `is_known` says
    whether nobody asks for the version before an update any more.
    """

    def __init__(self, state: StateFile, is_known: Callable[[ModelRecord], bool]) -> None:
        self._state, self._is_known = state, is_known
        self._dead: set[tuple[str, int]] = set()

    def has(self, model: str, number: int) -> bool:
        """Whether this dead version only serves on beside a newer one. `end` knows of it then.

        Until the workers know of that one, it is what answers: loaded again it is back the sooner.
        """
        record = self._state.records().get(model)
        if record is None or number not in _in_grace(record):
            return False
        if not self._is_known(record):
            return False
        if (model, number) not in self._dead:
            _log.error("%s: the process of version %d died in its grace, which ends", model, number)
            self._dead.add((model, number))
        return True

    def end(self, now: float, is_free: Callable[[str], bool]) -> None:
        """Of those that died, where no job has the model: they are retired then."""
        for model, number in list(self._dead):
            if not is_free(model):
                continue
            record = self._state.records().get(model)
            if record is not None and number in _in_grace(record):
                self._state.commit(model, _ended(record, number, now))
            self._dead.discard((model, number))


def _in_grace(record: ModelRecord) -> frozenset[int]:
    return record.numbers - {record.current.number}


def _ended(record: ModelRecord, number: int, now: float) -> ModelRecord:
    versions = (replace(v, drop_at=now) if v.number == number else v for v in record.versions)
    return replace(record, versions=tuple(versions))
