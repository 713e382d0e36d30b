"""The loop: sync, look at Triton, plan, act; nothing slow ever runs in the loop itself."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from transformer_serving.contract.error_line import one_line
from transformer_serving.engine.controller.control_plane.served import ControlPlane, Served
from transformer_serving.engine.controller.deployment import Deployment
from transformer_serving.engine.controller.figures import TritonFigures
from transformer_serving.engine.controller.files.repository import Repository
from transformer_serving.engine.controller.metrics import MetricsPage
from transformer_serving.engine.controller.plan import (
    Action,
    Prepare,
    Reload,
    Remove,
    Situation,
    plan,
)
from transformer_serving.engine.controller.proving.machine import read_machine
from transformer_serving.engine.controller.proving.prover import PROOF_MODEL, ProofFailed, Prover
from transformer_serving.engine.controller.proving.refusal_line import refusal_line
from transformer_serving.engine.controller.records import (
    AWAY,
    DIED,
    DIFFERS,
    FAILED,
    FailedChange,
    Pauses,
    failed_again,
)
from transformer_serving.engine.controller.rollouts.taking import Rollouts
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.controller.status import (
    EndpointStatus,
    Proving,
    as_json,
    changes,
    endpoint_rows,
)
from transformer_serving.engine.controller.sync import Sync
from transformer_serving.engine.controller.triton.server import BackendDied, Triton, TritonAway
from transformer_serving.engine.errors import EngineError

_log = logging.getLogger(__name__)

_TICK_S = 0.5
# A Triton that hangs must not make the loop look hung, too.
_LOOK_S = 1.0
# After a start, what was served before is loaded again without the first sync beside it, whose
# import of the SDK would take the processor from it; no longer than this.
_HEAD_START_S = 15.0
_PAUSES: Mapping[type[BaseException], Pauses] = {
    TritonAway: AWAY,
    BackendDied: DIED,
    ProofFailed: DIFFERS,
}
_PREPARED = 32
# A proof's fault names lengths and batches, and what to do comes after it.
_REASON_CHARACTERS = 800


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
        self._triton = triton
        self._repository = repository
        self._state = state
        self._prover = prover
        self._figures = figures
        self._page = page
        self._rollouts = Rollouts(control_plane, settings.endpoint_filter)
        grace_s, notice_s = settings.grace_s, settings.notice_s
        self._deployment = Deployment(
            *(control_plane, triton, repository, prover, state.commit, grace_s),
            notice_s=grace_s if notice_s is None else notice_s,
            is_wanted=self._is_wanted,
        )
        self._wake = threading.Event()
        # The SDK's calls in a thread of their own: they may block for long. Triton's loads apart
        # from downloads, so that a slow download never delays putting a lost model back.
        self._sdk = ThreadPoolExecutor(1, "sdk")
        # Most of its threads only wait, until the workers know of a new version.
        self._downloads = ThreadPoolExecutor(_PREPARED, "prepare")
        self._loads = ThreadPoolExecutor(4, "load")
        self._looks = ThreadPoolExecutor(1, "look")
        self._asked: Future[dict[str, frozenset[int]] | None] | None = None
        self._jobs: dict[str, tuple[Future[None], str]] = {}
        self._sync = Sync(
            *(control_plane, self._sdk, settings.poll_s, settings.endpoint_filter, _reason),
            self._endpoint_of,
        )
        self._head_start_ends = time.monotonic() + (_HEAD_START_S if state.records() else 0.0)
        self._failures: dict[str, FailedChange] = {}
        self._rows: list[EndpointStatus] = []
        self._reported: list[EndpointStatus] = []
        self._started = time.time()
        self._triton_version: str | None = None

    def run(self, stop: threading.Event) -> None:
        self.recover()
        while not stop.is_set():
            self.round()
            self._wake.wait(min(self._settings.poll_s, _TICK_S))
            self._wake.clear()

    def recover(self) -> None:
        """Make the repository say what the state file says, whatever a crash left behind."""
        self._repository.remove(PROOF_MODEL)
        for model, record in self._state.records().items():
            if self._repository.has_files(model, record.current.token):
                self._deployment.restore(record)
            else:
                _log.warning("%s: its files are gone; fetched again", model)
                self._state.commit(model, None)

    def round(self) -> None:
        now = time.time()
        if self._sync.finish():
            self._forget_what_is_over()
        self._finish_jobs(now)
        if time.monotonic() >= self._head_start_ends:
            self._sync.start_when_due(self._wake.set)
        loaded = self._loaded()
        for model, action in self._plan(loaded, now).items():
            if model not in self._jobs:
                self._start(model, action, now)
        if loaded is not None and not self._jobs:
            self._head_start_ends = 0.0
        self._publish(loaded)
        self._state.beat()
        if self._sync.last is not None:
            self._rollouts.take_when_due(self._sdk, self._rows)
        self._figures.report_when_due(self._sdk, self._control_plane)

    def _plan(self, loaded: Mapping[str, frozenset[int]] | None, now: float) -> dict[str, Action]:
        wanted, records = self._sync.wanted, self._state.records()
        actions = plan(
            Situation(
                wanted=None if wanted is None else {m: s.fingerprint for m, s in wanted.items()},
                records=records,
                failures=self._failures,
                loaded=loaded,
                now=now,
                unproven=self._prover.unproven(records.values()),
            )
        )
        # A proof that was cut short, by a crash of ours or a Triton that hung.
        if PROOF_MODEL in (loaded or ()) and not self._prover.proving:
            actions[PROOF_MODEL] = Remove()
        if wanted is not None and loaded is not None:
            # Files of ours that no record knows: a crash in the middle of a first load.
            known = set(wanted) | set(records)
            actions.update({model: Remove() for model in self._repository.models() - known})
        return actions

    def _start(self, model: str, action: Action, now: float) -> None:
        record = self._state.records().get(model)
        served = (self._sync.wanted or {}).get(model)
        steps = self._deployment
        fingerprint = record.fingerprint if record is not None else ""
        pool, job = self._loads, _nothing
        if isinstance(action, Prepare) and served is not None:
            pool, fingerprint = self._downloads, served.fingerprint
            job = _bind(steps.prepare, served, record)
        elif model == PROOF_MODEL:
            job = self._prover.clear
        elif isinstance(action, Remove):
            job = _bind(steps.remove, model)
        elif record is not None:
            job = (
                _bind(steps.reload, record)
                if isinstance(action, Reload)
                else _bind(steps.retire, record, now)
            )
        _log.info("%s: %s", model, type(action).__name__.lower())
        future = pool.submit(job)
        self._jobs[model] = future, fingerprint
        future.add_done_callback(lambda _: self._wake.set())

    def _endpoint_of(self, model: str) -> str | None:
        record = self._state.records().get(model)
        return None if record is None else record.endpoint

    def _is_wanted(self, served: Served) -> bool:
        now = (self._sync.wanted or {}).get(served.model)
        return now is not None and now.fingerprint == served.fingerprint

    def _finish_jobs(self, now: float) -> None:
        for model, (future, fingerprint) in list(self._jobs.items()):
            if not future.done():
                continue
            del self._jobs[model]
            error = future.exception()
            before = self._failures.get(model)
            if error is None:
                if before is not None and before.fingerprint == fingerprint:
                    del self._failures[model]
                continue
            reason = _reason(error)
            _log.error("%s: %s", model, reason, exc_info=_unexpected(error))
            pauses = _PAUSES.get(type(error), FAILED)
            failure = failed_again(before, fingerprint, reason, now, pauses)
            if isinstance(error, ProofFailed):
                failure = replace(failure, unproven_bundle=error.bundle_version)
                line = refusal_line(model, error.model_id, reason)
                self._sdk.submit(self._control_plane.report, line)
            self._failures[model] = failure

    def _forget_what_is_over(self) -> None:
        """A failure of something that is no longer asked for is over."""
        asked = {served.fingerprint for served in (self._sync.wanted or {}).values()}
        asked |= {record.fingerprint for record in self._state.records().values()}
        self._failures = {m: f for m, f in self._failures.items() if f.fingerprint in asked}

    def _loaded(self) -> dict[str, frozenset[int]] | None:
        """What is ready now; None when Triton is away, or keeps this loop waiting."""
        if self._asked is None:
            self._asked = self._looks.submit(self._ask_triton)
        late = not wait([self._asked], _LOOK_S).done
        if late:
            return None
        asked, self._asked = self._asked, None
        return asked.result()

    def _ask_triton(self) -> dict[str, frozenset[int]] | None:
        try:
            for model in self._triton.end_stuck_loads():
                _log.error("%s: its backend process died as it loaded; Triton is restarted", model)
            if self._triton_version is None:
                self._triton_version = self._triton.version()
                self._prover.on(read_machine(self._triton_version, self._repository.root))
            for model in self._triton.unload_dead():
                _log.error("%s: its backend process died; it is loaded again", model)
            return self._triton.loaded()
        except TritonAway:
            self._triton_version = None
            return None

    def _publish(self, loaded: Mapping[str, frozenset[int]] | None) -> None:
        proving = Proving(self._prover.proving, self._prover.passed)
        rows = endpoint_rows(
            self._sync.wanted,
            self._sync.problems,
            self._state.records(),
            self._failures,
            loaded,
            proving,
        )
        self._state.publish({
            "controller": self._own_status(loaded), "endpoints": as_json(rows),
            "rollouts": self._rollouts.shown,
        })  # fmt: skip
        self._page.show(rows, self._sync.last, triton_ready=loaded is not None)
        for line in changes(self._rows, rows):
            _log.info("%s", line)
        self._rows = rows
        # Before the first sync there is nobody to tell; afterwards everything at once.
        lines = changes(self._reported, rows) if self._sync.last is not None else []
        if lines:
            self._sdk.submit(self._control_plane.report, "\n".join(lines))
            self._reported = rows

    def _own_status(self, loaded: Mapping[str, frozenset[int]] | None) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "started": self._started,
            "last_sync": self._sync.last,
            "last_sync_ok": self._sync.error is None and self._sync.last is not None,
            "control_plane_error": self._sync.error,
            "triton": {"version": self._triton_version, "ready": loaded is not None},
        }


def _bind(step: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: step(*arguments)


def _nothing() -> None:
    """Between planning and acting the endpoint or the record went away."""


def _unexpected(error: BaseException) -> BaseException | None:
    """Only a fault of ours, or of the SDK, is logged with its traceback."""
    return None if isinstance(error, (EngineError, ValueError)) else error


def _reason(error: BaseException) -> str:
    text = one_line(error, _REASON_CHARACTERS)
    return (
        text
        if isinstance(error, EngineError | ValueError) and text
        else (f"{type(error).__name__}: {text}")
    )
