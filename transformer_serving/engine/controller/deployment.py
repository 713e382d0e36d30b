"""Changes one model in Triton: as a whole or not at all.

Tested by tests/engine/test_deployment.py and tests/engine/test_repository.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from transformer_serving.engine.controller.control_plane.served import ControlPlane, Served
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.proving.before_load import prove_before_load
from transformer_serving.engine.controller.proving.prover import ProofFailed, Prover
from transformer_serving.engine.controller.records import ModelRecord, Version
from transformer_serving.engine.controller.served_versions import (
    config_of_all,
    in_grace,
    reduced,
    served_config,
)
from transformer_serving.engine.controller.triton.server import LoadFailed, Triton, TritonAway
from transformer_serving.engine.controller.trust import REFUSALS, Trust
from transformer_serving.engine.controller.verified_files import verified_version
from transformer_serving.engine.errors import EngineError, NotWanted
from transformer_serving.engine.model_config import ModelConfig, from_text

# Models that are proven and loaded at a time.
_AT_WORK = 2
_LOOK_S = 1.0

Commit = Callable[[str, ModelRecord | None], None]
_log = logging.getLogger(__name__)


class Waits(Protocol):
    """As Notices has them."""

    def now(self) -> float: ...

    def left_s(self, since: float) -> float: ...


@dataclass(frozen=True)
class Deployment:
    """The steps behind the planned actions. `commit` makes a record (None: gone) the last good
    state, on disk when it returns; what it does not name is deleted only afterwards.

    `grace_s` is how long an old version serves on beside the new one; `notices` tell whether every
    worker knows by now of what was asked for at a time of theirs; `is_wanted`
    whether an endpoint is still to be so. In the block of `alone` nobody else changes the model; it
    gives the record as it is by then. `begins` hears of each load, by model and fingerprint, once
    its turn has come and before it begins.
    """

    control_plane: ControlPlane
    triton: Triton
    repository: Repository
    prover: Prover
    trust: Trust
    commit: Commit
    grace_s: float
    notices: Waits
    is_wanted: Callable[[Served], bool]
    begins: Callable[[str, str], None]
    alone: Callable[[str], contextlib.AbstractContextManager[ModelRecord | None]]
    sleep: Callable[[float], None] = time.sleep
    _at_work: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_AT_WORK))
    _to_prove: threading.Lock = field(default_factory=threading.Lock)

    def fetch(self, served: Served, record: ModelRecord | None) -> Version:
        """Fetch and verify an endpoint's model, for `take`; what serves is not touched."""
        return verified_version(self.control_plane, self.repository, served, record)

    def take(self, served: Served, record: ModelRecord | None, fetched: Version) -> None:
        """Prove and load what was fetched. The last good state is put back on a failure.

        Until it is proven, what Triton has lost of that state is loaded again beside it. Raises
        NotWanted where nobody asks for it any more as it is to be proven, or to be loaded: it would
        take the place of what the workers ask for.
        """
        new = dataclasses.replace(fetched, since=time.time())
        stack = contextlib.ExitStack
        with stack() as turn, stack() as alone, stack() as undo:
            try:
                begins = partial(self._begins, served)
                with self._turn_to_prove(new):
                    turn.enter_context(self._at_work)
                    prove_before_load(self.prover, self.triton, new, served.model, record, begins)
            finally:
                record = alone.enter_context(self.alone(served.model))
                undo.callback(self._put_back, served.model, record, new.token)
                # From here on a record holds the files, or nobody does.
                undo.callback(self.repository.release, new.token)
            begins()
            if record is not None and (old := self._loaded_as(record, new)):
                self._rename(served, record, old, new)
            else:
                self._load(served, record, new, turn)
            undo.pop_all()
            self.repository.release(new.token)

    def _begins(self, served: Served) -> None:
        self._check_wanted(served)
        self.begins(served.model, served.fingerprint)

    def _check_wanted(self, served: Served) -> None:
        if not self.is_wanted(served):
            raise NotWanted("another one was asked for meanwhile, or none")

    def reload(self, record: ModelRecord) -> None:
        """Load the last good state again, without the versions whose grace is over; its links and
        configuration are written anew.

        What an earlier kit took is checked first, and a state that came from another machine is
        proven on this one: what is not, is not served.
        """
        begins = partial(self.begins, record.model, record.fingerprint)
        try:
            current = self.trust.checked(record.model, record.current)
            prove_before_load(self.prover, self.triton, current, record.model, None, begins)
        except (*REFUSALS, ProofFailed):
            self.triton.unload(record.model)
            raise
        begins()
        kept = self._install_kept(record, current)
        self.triton.load(kept.model, kept.current.number)
        if kept != record:
            self.commit(kept.model, kept)
            self._clean(kept)

    def _install_kept(self, record: ModelRecord, current: Version) -> ModelRecord:
        """The record without the versions whose grace is over; with them where a full disk has no
        room for another configuration than the one that lies there."""
        older = self._servable(record.model, record.versions[1:])
        in_time = {one.number for one in record.kept(time.time())}
        kept = reduced(record, (current, *(one for one in older if one.number in in_time)))
        try:
            self._install(kept)
        except OSError:
            kept = reduced(record, (current, *older))
            self._install(kept)
        return kept

    def _servable(self, model: str, versions: Sequence[Version]) -> tuple[Version, ...]:
        """Without those that ought to be proven on this machine, and are not, and those that this
        kit or its trusted keys refuse."""
        proven = [v for v in versions if not v.subject or self.prover.passed(v)]
        return self.trust.passing(model, proven)

    def restore(self, record: ModelRecord) -> None:
        """Make the files say what the record says, as after a crash in the middle of a change.

        What no record names goes first: the disk may be full of it.
        """
        self._clean(record)
        self._install(record)

    def retire(self, record: ModelRecord, now: float) -> None:
        """Drop the versions whose grace is over."""
        self.begins(record.model, record.retirement)
        after = reduced(record, record.kept(now))
        self._install(after)
        try:
            self.triton.load(record.model, after.current.number)
        except EngineError:
            self._install(record)
            raise
        self.commit(record.model, after)
        self._clean(after)

    def remove(self, model: str) -> None:
        """Unload the model and forget it; files last, so that a crash leaves a state to go on."""
        self.triton.unload(model)
        self.commit(model, None)
        self.repository.remove(model)
        if model in self.repository.models():
            raise EngineError(
                f"the files of '{model}' cannot be deleted; delete {self.repository.store(model)}"
            )

    def _turn_to_prove(self, version: Version) -> contextlib.AbstractContextManager[object]:
        """Held from before its turn among all: of those that are to be proven, which is done one at
        a time, the others keep nobody from being loaded."""
        if not version.subject or self.prover.passed(version):
            return contextlib.nullcontext()
        return self._to_prove

    def _loaded_as(self, record: ModelRecord, new: Version) -> Version | None:
        """The version that Triton has as exactly this: the one in service, which a tag that
        `deploy` or a person put on the model made look like another, or the one before it."""
        if not record.numbers <= self.triton.loaded().get(record.model, frozenset()):
            return None
        wanted = (new.token, new.number, new.config)
        same = (v for v in record.versions if (v.token, v.number, v.config) == wanted)
        return next(same, None)

    def _rename(self, served: Served, record: ModelRecord, old: Version, new: Version) -> None:
        """Triton keeps what it has; of the one before, only which of them serves is another."""
        if old is record.current:
            new = dataclasses.replace(new, since=old.since)
            beside = record.versions[1:]
        else:
            beside = in_grace(record, new, time.time(), self.grace_s)
        after = dataclasses.replace(
            record,
            endpoint=served.endpoint,
            fingerprint=served.fingerprint,
            versions=(new, *beside),
        )
        self.commit(served.model, after)

    def _load(
        self,
        served: Served,
        record: ModelRecord | None,
        new: Version,
        turn: contextlib.ExitStack,
    ) -> None:
        old = self._beside(record, new)
        together = (new, *old)
        config = config_of_all(together)
        try:
            if config is None:
                raise LoadFailed("the configurations differ", frozenset({v.number for v in old}))
            self._try(served, record, together, config)
        except LoadFailed as failure:
            # Only the old version stood in the way: its files do not fit the new configuration.
            if not old or new.number in failure.versions or not failure.versions:
                raise
            self._wait_for_workers(served, old[0], turn)
            self._try(served, record, (new,), from_text(new.config))

    def _beside(self, record: ModelRecord | None, new: Version) -> tuple[Version, ...]:
        """What serves on beside the new one. Not what Triton has lost: workers get nothing of it as
        it is, and where its load is what ended Triton, it would end the new one's with it."""
        if record is None:
            return ()
        loaded = self.triton.loaded().get(record.model, ())
        kept = in_grace(record, new, time.time(), self.grace_s)
        return self._servable(record.model, [one for one in kept if one.number in loaded])

    def _wait_for_workers(self, served: Served, old: Version, turn: contextlib.ExitStack) -> None:
        """The old version goes as the new one comes: by then every worker must know of the new one,
        or it would ask for a version that is gone. Others have the turn meanwhile."""
        turn.close()
        began = self.notices.now()
        _log.info(
            "%s: the update cannot be loaded beside the version in service, and waits until every "
            "worker can know of it: %.0f s in which the control plane answers",
            served.model, self.notices.left_s(began),
        )  # fmt: skip
        while True:
            self._check_wanted(served)
            try:
                loaded = self.triton.loaded()
            except TritonAway:
                # It is only late, or comes back without the old one.
                self.sleep(_LOOK_S)
                continue
            # Of one that Triton has lost nothing is left to keep: what is proven takes its place at
            # once, as what is put back does.
            if old.number not in loaded.get(served.model, ()):
                return
            if self.notices.left_s(began):
                self.sleep(_LOOK_S)
            elif self._at_work.acquire(timeout=_LOOK_S):
                turn.callback(self._at_work.release)
                return

    def _try(
        self,
        served: Served,
        before: ModelRecord | None,
        versions: Sequence[Version],
        config: ModelConfig,
    ) -> None:
        record = ModelRecord(
            model=served.model,
            endpoint=served.endpoint,
            fingerprint=served.fingerprint,
            versions=tuple(versions),
            served_config=served_config(served.model, config, versions),
        )
        self._install(record)
        self.triton.load(served.model, record.current.number)
        try:
            self.commit(served.model, record)
        except BaseException:
            if before is None:
                # Loaded and not written down, as on a full disk, it would be nobody's.
                with contextlib.suppress(EngineError):
                    self.triton.unload(served.model)
            raise
        self._clean(record)

    def _put_back(self, model: str, record: ModelRecord | None, token: str) -> None:
        if record is None:
            self.repository.take_back(model, token)
        else:
            self.restore(record)

    def _install(self, record: ModelRecord) -> None:
        tokens = {version.number: version.token for version in record.versions}
        self.repository.install(record.model, tokens, record.served_config)

    def _clean(self, record: ModelRecord) -> None:
        self.repository.keep_only(record.model, [version.token for version in record.versions])
