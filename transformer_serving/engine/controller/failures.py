"""Which changes failed, why, and when each may be tried again.

Tested by tests/engine/test_failures.py.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import replace

from transformer_serving.contract.error_line import one_line
from transformer_serving.engine.controller.proving.prover import ProofFailed
from transformer_serving.engine.controller.records import (
    AWAY,
    DIED,
    DIFFERS,
    FAILED,
    REMOVAL,
    FailedChange,
    Failures,
    Kind,
    ModelRecord,
    Pauses,
    failed_again,
)
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.controller.triton.server import BackendDied, TritonAway
from transformer_serving.engine.errors import EngineError, NotStored, StorageError, TooLargeSoFar

_PAUSES: Mapping[type[BaseException], Pauses] = {
    TritonAway: AWAY,
    BackendDied: DIED,
    ProofFailed: DIFFERS,
    TooLargeSoFar: DIFFERS,
}
# The first that fits; everything else is the model's own fault.
_KINDS: tuple[tuple[type[BaseException], Kind], ...] = (
    (TritonAway, Kind.AWAY),
    (BackendDied, Kind.DIED),
    (NotStored, Kind.MISSING),
    (StorageError, Kind.UNREACHED),
    (FileNotFoundError, Kind.REFUSED),
    (OSError, Kind.UNREACHED),
)
# A proof's fault names lengths and batches, and what to do comes after it.
_REASON_CHARACTERS = 800


# A load may take Triton along, its container and this controller: the pauses of such ones are kept.
_KEPT = frozenset({Kind.AWAY, Kind.DIED})
# Whoever starts all of it again by hand, with more memory, does not wait for longer.
_LONGEST_AFTER_START_S = 300.0
_CUT_SHORT = "it was not loaded to the end: the controller ended meanwhile"


class FailedChanges:
    """By model and fingerprint, for as long as somebody asks for them.

    What a start needs of them is kept in `state`. A load is told before it begins, so that one that
    ends this controller is a failure for the next; `begin` is for its own thread, all else for the
    loop.
    """

    def __init__(self, state: StateFile, now: float) -> None:
        self._state = state
        self._lock = threading.Lock()
        self._begun: dict[tuple[str, str], FailedChange] = {}
        latest = now + _LONGEST_AFTER_START_S
        self._failed = {
            key: replace(failure, retry_at=min(failure.retry_at, latest))
            for key, failure in state.failures().items()
        }
        self._of_before = set(self._failed)

    @property
    def now(self) -> Failures:
        return self._failed

    def took_along(self, record: ModelRecord | None) -> bool:
        """Whether its last load took Triton, or its process, along."""
        if record is None:
            return False
        failure = self._failed.get((record.model, record.fingerprint))
        return failure is not None and failure.kind in _KEPT

    def begin(self, model: str, fingerprint: str, now: float) -> None:
        """It is about to be loaded."""
        with self._lock:
            before = self._failed.get((model, fingerprint))
            died = before is not None and before.kind is Kind.DIED
            pauses, kind = (DIED, Kind.DIED) if died else (AWAY, Kind.AWAY)
            failure = failed_again(before, fingerprint, _CUT_SHORT, now, pauses, kind)
            self._begun[model, fingerprint] = failure
            self._keep()

    def take(self, model: str, fingerprint: str, error: BaseException, now: float) -> None:
        key = model, fingerprint
        pauses = _PAUSES.get(type(error), FAILED)
        before = self._failed.get(key)
        failure = failed_again(before, fingerprint, reason_of(error), now, pauses, kind_of(error))
        if isinstance(error, ProofFailed):
            failure = replace(failure, unproven_bundle=error.bundle_version)
        self._of_before.discard(key)
        with self._lock:
            self._failed[key] = failure
            self._begun.pop(key, None)
            self._keep()

    def over(self, model: str, fingerprint: str) -> None:
        """It did happen now."""
        self._of_before.discard((model, fingerprint))
        with self._lock:
            self._failed.pop((model, fingerprint), None)
            self._begun.pop((model, fingerprint), None)
            self._keep()

    def given_up(self, model: str, fingerprint: str) -> None:
        """It ended, and neither did happen nor failed."""
        with self._lock:
            self._begun.pop((model, fingerprint), None)
            self._keep()

    def serves(self, model: str, fingerprint: str) -> None:
        """Triton has it: a controller before this one did load it, and came to say no more."""
        if (model, fingerprint) in self._of_before:
            self.over(model, fingerprint)

    def forget(self, asked: Collection[tuple[str, str]], wanted: Collection[str]) -> None:
        """What is no longer asked for is over; so is the removal of a model that is wanted."""
        with self._lock:
            self._failed = {
                (model, fingerprint): failure
                for (model, fingerprint), failure in self._failed.items()
                if (model, fingerprint) in asked or (fingerprint == REMOVAL and model not in wanted)
            }
            self._keep()

    def _keep(self) -> None:
        kept = {key: failure for key, failure in self._failed.items() if failure.kind in _KEPT}
        self._state.keep_failures({**kept, **self._begun})


def kind_of(error: BaseException) -> Kind:
    return next((kind for fits, kind in _KINDS if isinstance(error, fits)), Kind.REFUSED)


def reason_of(error: BaseException) -> str:
    text = one_line(error, _REASON_CHARACTERS)
    return (
        text
        if isinstance(error, EngineError | ValueError) and text
        else (f"{type(error).__name__}: {text}")
    )
