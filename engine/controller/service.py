"""The loop: sync, look at Triton, plan, act; nothing slow ever runs in the loop itself."""

from __future__ import annotations

import fnmatch
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from engine.controller.control_plane import ControlPlane, Problem, Served
from engine.controller.deployment import Deployment
from engine.controller.figures import Figures
from engine.controller.plan import Action, Prepare, Reload, Remove, Situation, plan
from engine.controller.records import AWAY, DIED, FAILED, Failure, Pauses, failed_again
from engine.controller.repository import Repository
from engine.controller.state import StateFile
from engine.controller.status import EndpointStatus, as_json, changes, endpoint_rows
from engine.controller.triton import BackendDied, Triton, TritonAway
from engine.errors import EngineError

_log = logging.getLogger(__name__)

_TICK_S = 0.5
# A sync that takes longer is shown as an error: the SDK never gives up, it only comes back late.
_SLOW_SYNC_S = 10.0
# A Triton that hangs must not make the loop look hung, too.
_LOOK_S = 1.0
# After a start, what was served before is loaded again without the first sync beside it, whose
# import of the SDK would take the processor from it; no longer than this.
_HEAD_START_S = 15.0
_PAUSES: Mapping[type[BaseException], Pauses] = {TritonAway: AWAY, BackendDied: DIED}


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    poll_s: float
    grace_s: float
    endpoint_filter: str = "*"


class Service:
    """One controller over one Triton. `run` returns when `stop` is set."""

    def __init__(
        self,
        settings: Settings,
        control_plane: ControlPlane,
        triton: Triton,
        repository: Repository,
        state: StateFile,
        figures: Figures,
    ) -> None:
        self._settings = settings
        self._control_plane = control_plane
        self._triton = triton
        self._repository = repository
        self._state = state
        self._figures = figures
        self._deployment = Deployment(
            control_plane, triton, repository, state.commit, settings.grace_s
        )
        self._wake = threading.Event()
        # The SDK's calls in a thread of their own: they may block for long. Triton's loads apart
        # from downloads, so that a slow download never delays putting a lost model back.
        self._sdk = ThreadPoolExecutor(1, "sdk")
        self._downloads = ThreadPoolExecutor(2, "prepare")
        self._loads = ThreadPoolExecutor(4, "load")
        self._looks = ThreadPoolExecutor(1, "look")
        self._asked: Future[dict[str, frozenset[int]] | None] | None = None
        self._jobs: dict[str, tuple[Future[None], str]] = {}
        self._sync: Future[Sequence[Served]] | None = None
        self._sync_started = float("-inf")
        self._head_start_ends = time.monotonic() + (_HEAD_START_S if state.records() else 0.0)
        self._wanted: dict[str, Served] | None = None
        self._problems: list[Problem] = []
        self._failures: dict[str, Failure] = {}
        self._rows: list[EndpointStatus] = []
        self._reported: list[EndpointStatus] = []
        self._started = time.time()
        self._last_sync: float | None = None
        self._sync_error: str | None = None
        self._triton_version: str | None = None

    def run(self, stop: threading.Event) -> None:
        self.recover()
        while not stop.is_set():
            self.round()
            self._wake.wait(min(self._settings.poll_s, _TICK_S))
            self._wake.clear()

    def recover(self) -> None:
        """Make the repository say what the state file says, whatever a crash left behind."""
        for model, record in self._state.records().items():
            if self._repository.has_files(model, record.current.token):
                self._deployment.restore(record)
            else:
                _log.warning("%s: its files are gone; fetched again", model)
                self._state.commit(model, None)

    def round(self) -> None:
        now = time.time()
        self._finish_sync()
        self._finish_jobs(now)
        self._start_sync()
        loaded = self._loaded()
        for model, action in self._plan(loaded, now).items():
            if model not in self._jobs:
                self._start(model, action, now)
        if loaded is not None and not self._jobs:
            self._head_start_ends = 0.0
        self._publish(loaded)
        self._state.beat()
        self._figures.report_when_due(self._sdk, self._control_plane)

    def _plan(self, loaded: Mapping[str, frozenset[int]] | None, now: float) -> dict[str, Action]:
        wanted = self._wanted
        actions = plan(
            Situation(
                wanted=None if wanted is None else {m: s.fingerprint for m, s in wanted.items()},
                records=self._state.records(),
                failures=self._failures,
                loaded=loaded,
                now=now,
            )
        )
        if wanted is not None and loaded is not None:
            # Files of ours that no record knows: a crash in the middle of a first load.
            known = set(wanted) | set(self._state.records())
            actions.update({model: Remove() for model in self._repository.models() - known})
        return actions

    def _start(self, model: str, action: Action, now: float) -> None:
        record = self._state.records().get(model)
        served = (self._wanted or {}).get(model)
        steps = self._deployment
        fingerprint = record.fingerprint if record is not None else ""
        pool, job = self._loads, _nothing
        if isinstance(action, Prepare) and served is not None:
            pool, fingerprint = self._downloads, served.fingerprint
            job = _bind(steps.prepare, served, record)
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
            self._failures[model] = failed_again(before, fingerprint, reason, now, pauses)

    def _start_sync(self) -> None:
        due = time.monotonic() - self._sync_started >= self._settings.poll_s
        if self._sync is None and due and time.monotonic() >= self._head_start_ends:
            self._sync_started = time.monotonic()
            self._sync = self._sdk.submit(self._control_plane.endpoints)
            self._sync.add_done_callback(lambda _: self._wake.set())

    def _finish_sync(self) -> None:
        if self._sync is None:
            return
        if not self._sync.done():
            waited = time.monotonic() - self._sync_started
            if waited > _SLOW_SYNC_S and self._sync_error is None:
                self._sync_error = f"no answer for more than {_SLOW_SYNC_S:.0f} s"
                _log.error("control plane: %s", self._sync_error)
            return
        error = self._sync.exception()
        if error is not None:
            reason = _reason(error)
            if reason != self._sync_error:
                _log.error("control plane: %s", reason)
            self._sync_error = reason
        else:
            self._take_up(self._sync.result())
        self._sync = None

    def _take_up(self, endpoints: Sequence[Served]) -> None:
        """Two addresses can mean one Triton name: the first keeps it, the other is told."""
        self._sync_error, self._last_sync = None, time.time()
        wanted: dict[str, Served] = {}
        self._problems = list(self._control_plane.problems())
        for served in sorted(endpoints, key=lambda served: served.endpoint):
            if not fnmatch.fnmatchcase(served.endpoint, self._settings.endpoint_filter):
                continue
            # Such a folder would be ours, or outside the repository.
            if served.model.startswith(".") or not served.model:
                self._problems.append(_problem(served, "an endpoint name must not begin with '.'"))
                continue
            other = wanted.setdefault(served.model, served)
            if other is not served:
                reason = (
                    f"its Triton model name '{served.model}' is taken by endpoint "
                    f"'{other.endpoint}'; choose another endpoint name"
                )
                self._problems.append(_problem(served, reason))
        self._wanted = wanted
        # A failure of something that is no longer asked for is over.
        asked = {served.fingerprint for served in wanted.values()}
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
            for model in self._triton.unload_dead():
                _log.error("%s: its backend process died; it is loaded again", model)
            return self._triton.loaded()
        except TritonAway:
            self._triton_version = None
            return None

    def _publish(self, loaded: Mapping[str, frozenset[int]] | None) -> None:
        rows = endpoint_rows(
            self._wanted, self._problems, self._state.records(), self._failures, loaded
        )
        self._state.publish({"controller": self._own_status(loaded), "endpoints": as_json(rows)})
        for line in changes(self._rows, rows):
            _log.info("%s", line)
        self._rows = rows
        # Before the first sync there is nobody to tell; afterwards everything at once.
        lines = changes(self._reported, rows) if self._last_sync is not None else []
        if lines:
            self._sdk.submit(self._control_plane.report, "\n".join(lines))
            self._reported = rows

    def _own_status(self, loaded: Mapping[str, frozenset[int]] | None) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "started": self._started,
            "last_sync": self._last_sync,
            "last_sync_ok": self._sync_error is None and self._last_sync is not None,
            "control_plane_error": self._sync_error,
            "triton": {"version": self._triton_version, "ready": loaded is not None},
        }


def _problem(served: Served, reason: str) -> Problem:
    return Problem(served.endpoint, served.model, served.model_id, reason)


def _bind(step: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: step(*arguments)


def _nothing() -> None:
    """Between planning and acting the endpoint or the record went away."""


def _unexpected(error: BaseException) -> BaseException | None:
    """Only a fault of ours, or of the SDK, is logged with its traceback."""
    return None if isinstance(error, (EngineError, ValueError)) else error


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())[:500]
    return (
        text
        if isinstance(error, EngineError | ValueError) and text
        else (f"{type(error).__name__}: {text}")
    )
