"""The loop: sync, look at Triton, plan, act; nothing slow ever runs in the loop itself."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from transformer_serving.engine.controller.actions import Actions
from transformer_serving.engine.controller.control_plane.served import ControlPlane, Served
from transformer_serving.engine.controller.deployment import Deployment
from transformer_serving.engine.controller.failures import FailedChanges, reason_of
from transformer_serving.engine.controller.faults import Faults
from transformer_serving.engine.controller.fetches import Fetches
from transformer_serving.engine.controller.figures import TritonFigures
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.graces import Graces
from transformer_serving.engine.controller.jobs import Jobs
from transformer_serving.engine.controller.look import Loaded, Look
from transformer_serving.engine.controller.metrics import MetricsPage
from transformer_serving.engine.controller.notices import Notices
from transformer_serving.engine.controller.proving.machine import read_machine
from transformer_serving.engine.controller.proving.prover import PROOF_MODEL, ProofFailed, Prover
from transformer_serving.engine.controller.proving.refusal_line import refusal_line
from transformer_serving.engine.controller.publication import Publication
from transformer_serving.engine.controller.records import ModelRecord
from transformer_serving.engine.controller.rollouts.taking import Rollouts
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.controller.status import Proving, endpoint_rows
from transformer_serving.engine.controller.sync import Sync
from transformer_serving.engine.controller.triton.server import Triton
from transformer_serving.engine.controller.trust import Trust
from transformer_serving.engine.errors import EngineError, NotWanted

_log = logging.getLogger(__name__)

_TICK_S = 0.5
# After a start, what was served before is loaded again without the first sync beside it, whose
# import of the SDK would take the processor from it; no longer than this.
_HEAD_START_S = 15.0


@dataclass(frozen=True)
class ControllerSettings:
    """What the command line says."""

    poll_s: float
    grace_s: float
    endpoint_filter: str = "*"
    # Until every worker knows of an update; None: the grace.
    notice_s: float | None = None


class Service:
    """One controller over one Triton. `run` returns when `stop` is set."""

    def __init__(
        self,
        settings: ControllerSettings,
        control_plane: ControlPlane,
        triton: Triton,
        repository: Repository,
        state: StateFile,
        prover: Prover,
        figures: TritonFigures,
        page: MetricsPage,
    ) -> None:
        self._settings = settings
        self._control_plane = control_plane
        self._repository = repository
        self._state = state
        self._prover = prover
        self._figures = figures
        self._publication = Publication(page, state, self._report)
        self._rollouts = Rollouts(control_plane, settings.endpoint_filter, poll_s=settings.poll_s)
        # The SDK's calls in a thread of their own: they may block for long. Downloads, updates and
        # reloads apart, so that no slow one delays putting a lost model back.
        self._sdk = ThreadPoolExecutor(1, "sdk")
        self._sync = Sync(
            *(control_plane, self._sdk, settings.poll_s, settings.endpoint_filter),
            self._endpoint_of,
        )
        grace_s = settings.grace_s
        notice_s = grace_s if settings.notice_s is None else settings.notice_s
        self._notices = Notices(self._sync, notice_s)
        self._trust = Trust(os.environ, repository)
        self._deployment = Deployment(
            *(control_plane, triton, repository, prover, self._trust, state.commit, grace_s),
            notices=self._notices,
            is_wanted=self._is_wanted,
            begins=self._begins,
            alone=self._alone,
        )
        self._wake = threading.Event()
        self._fetches = Fetches(self._deployment.fetch, repository.discard, self._wake.set)
        self._jobs = Jobs(self._wake.set)
        self._faults = Faults()
        self._graces = Graces(state, self._notices.known)
        self._look = Look(triton, self._greet, self._graces.has, self._faults)
        self._head_start_ends = time.monotonic() + (_HEAD_START_S if state.records() else 0.0)
        self._failures = FailedChanges(state, time.time())
        self._actions = Actions(
            *(self._sync, state, repository, prover, self._trust, self._notices),
            *(self._deployment, self._fetches, self._jobs, self._failures),
        )

    def run(self, stop: threading.Event) -> None:
        self.recover()
        while not stop.is_set():
            self.round()
            self._wake.wait(min(self._settings.poll_s, _TICK_S))
            self._wake.clear()

    def recover(self) -> None:
        """Make the repository say what the state file says, whatever a crash left behind."""
        with self._faults.noted("what a crash left"):
            self._repository.clear_aside()
            self._repository.remove(PROOF_MODEL)
        for model, record in self._state.records().items():
            with self._faults.noted(f"the files of {model}"):
                if self._repository.has_files(model, record.current.token):
                    self._deployment.restore(record)
                else:
                    _log.warning("%s: its files are gone; fetched again", model)
                    self._state.commit(model, None)
        # Fetched for a first load that ended the container: it is fetched again, to a place anew.
        for model in self._repository.models() - set(self._state.records()):
            if not self._state.may_name(model):
                with self._faults.noted(f"the files of {model}"):
                    self._repository.keep_only(model, ())

    def round(self) -> None:
        """Nothing that goes wrong in it ends the controller, nor keeps its other parts."""
        now = time.time()
        with self._faults.noted("what has ended"):
            if self._sync.finish():
                self._forget_what_is_over()
            self._finish_jobs(now)
            if time.monotonic() >= self._head_start_ends:
                self._sync.start_when_due(self._wake.set)
        with self._faults.noted("whose grace is over"):
            self._graces.end(now, partial(self._jobs.is_free, beside=False))
        loaded = None
        with self._faults.noted("the look at Triton"):
            loaded = self._look.now()
        with self._faults.noted("what is to be done"):
            self._act(loaded, now)
        with self._faults.noted("the status"):
            self._publish(loaded)
        self._state.beat()
        with self._faults.noted("rollouts and figures"):
            if self._sync.last is not None:
                self._rollouts.take_when_due(self._sdk, self._publication.rows)
            self._figures.report_when_due(self._sdk, self._control_plane, self._faults)

    def _act(self, loaded: Loaded | None, now: float) -> None:
        # A late answer does not know yet what a job has done since it was asked for.
        self._jobs.seen(self._look.asked_at)
        for model, record in self._state.records().items():
            if loaded is not None and record.numbers <= loaded.get(model, frozenset()):
                self._failures.serves(model, record.fingerprint)
        self._actions.begin_due(loaded, now)
        if loaded is not None and not self._jobs and self._head_start_ends:
            self._head_start_ends = 0.0
            # For the first sync, which nothing else is waited for.
            self._wake.set()

    def _begins(self, model: str, fingerprint: str) -> None:
        self._failures.begin(model, fingerprint, time.time())

    @contextlib.contextmanager
    def _alone(self, model: str) -> Iterator[ModelRecord | None]:
        with self._jobs.alone(model):
            yield self._state.records().get(model)

    def _endpoint_of(self, model: str) -> str | None:
        record = self._state.records().get(model)
        return None if record is None else record.endpoint

    def _is_wanted(self, served: Served) -> bool:
        now = (self._sync.wanted or {}).get(served.model)
        return now is not None and now.fingerprint == served.fingerprint

    def _finish_jobs(self, now: float) -> None:
        for model, fingerprint, error in self._jobs.finished():
            if error is None:
                self._failures.over(model, fingerprint)
            elif isinstance(error, NotWanted):
                _log.info("%s: the update to what is not asked for any more has ended", model)
                self._failures.given_up(model, fingerprint)
            else:
                self._fail(model, fingerprint, error, now)
        for served, error in self._fetches.failed():
            if isinstance(error, NotWanted):
                _log.info("%s: the fetch of what is not asked for any more has ended", served.model)
            else:
                self._fail(served.model, served.fingerprint, error, now)

    def _fail(self, model: str, fingerprint: str, error: BaseException, now: float) -> None:
        reason = reason_of(error)
        _log.error("%s: %s", model, reason, exc_info=_unexpected(error))
        self._failures.take(model, fingerprint, error, now)
        if isinstance(error, ProofFailed):
            self._report(refusal_line(model, error.model_id, reason))

    def _forget_what_is_over(self) -> None:
        """A failure of something that is no longer asked for is over."""
        wanted = self._sync.wanted or {}
        asked = {(model, served.fingerprint) for model, served in wanted.items()}
        for model, record in self._state.records().items():
            asked |= {(model, record.fingerprint), (model, record.retirement)}
        self._failures.forget(asked, wanted)
        self._state.keep_unread(wanted)
        self._fetches.forget(wanted)

    def _greet(self, version: str) -> None:
        self._prover.on(read_machine(version, self._repository.root, self._prover.gpus.read))

    def _publish(self, loaded: Loaded | None) -> None:
        proving = Proving(self._prover.proving, self._prover.passed)
        records = self._state.records()
        rows = endpoint_rows(
            self._sync.wanted,
            self._sync.problems,
            records,
            self._failures.now,
            loaded,
            proving,
            self._trust.untrusted(records),
        )
        self._publication.show(
            rows, self._sync, self._look.version, self._rollouts.shown,
            triton_ready=loaded is not None, triton_starts=self._look.starts,
        )  # fmt: skip

    def _report(self, text: str) -> None:
        """To ClearML, whose calls may block."""
        report = partial(self._control_plane.report, text)
        self._faults.submit(self._sdk, "the report to ClearML", report)


def _unexpected(error: BaseException) -> BaseException | None:
    """Only a fault of ours, or of the SDK, is logged with its traceback."""
    return None if isinstance(error, (EngineError, ValueError, OSError)) else error
