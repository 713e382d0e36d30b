"""Begins what the plan says of each model, as a job or a fetch of its own.

Tested by tests/engine/test_rounds.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.controller.deployment import Deployment
from transformer_serving.engine.controller.failures import FailedChanges
from transformer_serving.engine.controller.fetches import Fetches
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.jobs import Jobs
from transformer_serving.engine.controller.look import Loaded
from transformer_serving.engine.controller.notices import Notices
from transformer_serving.engine.controller.plan import (
    Action,
    Prepare,
    Reload,
    Remove,
    Situation,
    Withdraw,
    files_may_be_why,
    plan,
)
from transformer_serving.engine.controller.proving.prover import PROOF_MODEL, Prover
from transformer_serving.engine.controller.records import REMOVAL, ModelRecord
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.controller.sync import Sync
from transformer_serving.engine.controller.trust import Trust

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Actions:
    """Used from the loop alone."""

    sync: Sync
    state: StateFile
    repository: Repository
    prover: Prover
    trust: Trust
    notices: Notices
    deployment: Deployment
    fetches: Fetches
    jobs: Jobs
    failures: FailedChanges

    def begin_due(self, loaded: Loaded | None, now: float) -> None:
        """What is to be done and may begin; `loaded` is None while Triton is away."""
        records = self.state.records()
        to_prove = self.prover.unproven(records.values())
        unproven = to_prove | self.trust.unchecked(records)
        for model, action in self._plan(loaded, unproven, now).items():
            # What serves is put back also while its update is on its way; but no proof of it then,
            # which would go before that of the update, nor what may take Triton from under it.
            reload = isinstance(action, Reload)
            waits = self.fetches.coming(model) and not reload
            harms = model in unproven or self.failures.took_along(records.get(model))
            beside = reload and not harms
            if self.jobs.is_free(model, beside=beside) and not waits:
                self._start(model, action, now, proof=reload and model in to_prove)

    def _plan(
        self, loaded: Loaded | None, unproven: frozenset[str], now: float
    ) -> dict[str, Action]:
        wanted, records = self.sync.wanted, self.state.records()
        # Files of ours that no record knows: a crash in the middle of a first load.
        leftover = set() if wanted is None else self.repository.models() - set(wanted)
        leftover -= set(records)
        # A proof that was cut short, by a crash of ours or a Triton that hung.
        if PROOF_MODEL in (loaded or ()) and not self.prover.proving:
            leftover.add(PROOF_MODEL)
        return plan(
            Situation(
                wanted=None if wanted is None else {m: s.fingerprint for m, s in wanted.items()},
                records=records,
                failures=self.failures.now,
                loaded=loaded,
                now=now,
                unproven=unproven,
                leftover=frozenset(leftover),
                untrusted=self.trust.untrusted(records),
                unknown=self.notices.unknown(records.values()),
            )
        )

    def _start(self, model: str, action: Action, now: float, *, proof: bool) -> None:
        served = (self.sync.wanted or {}).get(model)
        if isinstance(action, Prepare):
            if served is not None:
                self._start_update(served)
        elif self._claim(model, action):
            # Only now, as an update may have been at it.
            record = self.state.records().get(model)
            fingerprint, job = REMOVAL, _nothing
            if model == PROOF_MODEL:
                job = self.prover.clear
            elif isinstance(action, Remove):
                job = partial(self.deployment.remove, model)
            elif record is not None:
                fingerprint, job = self._job_of(action, record, now)
            self._begin(model, action, fingerprint, job, proof=proof)

    def _job_of(
        self, action: Action, record: ModelRecord, now: float
    ) -> tuple[str, Callable[[], None]]:
        steps = self.deployment
        if isinstance(action, Reload):
            return record.fingerprint, partial(steps.reload, record)
        if isinstance(action, Withdraw):
            return record.fingerprint, partial(steps.triton.unload, record.model)
        return record.retirement, partial(steps.retire, record, now)

    def _claim(self, model: str, action: Action) -> bool:
        if isinstance(action, Remove):
            # It deletes the files of what has come, too: nothing is to be taken of that then.
            self.fetches.leave(model)
        return self.jobs.claim(model)

    def _start_update(self, served: Served) -> None:
        model, record = served.model, self.state.records().get(served.model)
        fetched = self.fetches.take(served)
        if fetched is None:
            _log.info("%s: fetch", model)
            # Without a record nothing of what lies here is taken for the endpoint's.
            anew = files_may_be_why(model, served.fingerprint, self.failures.now)
            self.fetches.start(served, None if anew else record)
            return
        try:
            job = partial(self.deployment.take, served, record, fetched)
            self._begin(model, Prepare(), served.fingerprint, job)
        except BaseException:
            self.repository.discard(model, fetched.token)
            raise

    def _begin(
        self,
        model: str,
        action: Action,
        fingerprint: str,
        job: Callable[[], None],
        *,
        proof: bool = False,
    ) -> None:
        _log.info("%s: %s", model, type(action).__name__.lower())
        update = isinstance(action, Prepare)
        self.jobs.start(model, fingerprint, job, update=update, proof=proof)


def _nothing() -> None:
    """Between planning and acting the endpoint or the record went away."""
