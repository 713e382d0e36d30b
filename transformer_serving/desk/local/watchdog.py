"""Part `watchdog`: ends what hangs, so that the supervisor, which sees only what ends, restarts it.

Three ways to hang, each with its own patience, because a restart of a part that is merely busy
would make an overload worse:

stopped   SIGSTOP, or ^Z in some terminal: certain, so it is ended after STOPPED_LOOKS looks.
silent    answered before and no longer does: ended after SILENT_PROBES unanswered probes, or
          LOADING_PROBES where that may be a load.
starting  has never answered: ended after START_S.

A part that ends soon after each start is started again after LONGEST_PAUSE_S at the latest: the
supervisor's own pauses grow without an end.

Any HTTP status is an answer. What a debugger holds is left alone, and has all of its patience again
once it is let go.

Tested by tests/local/test_watchdog.py, tests/local/test_reliability_page.py and
tests/stack/test_storage_and_clock.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.health import probe
from transformer_serving.desk.local.leftovers import supervisor_socket
from transformer_serving.desk.local.parts import PARTS, Part, beat_file
from transformer_serving.desk.local.record import StackRecord, require_record
from transformer_serving.desk.local.supervision import STOPPED, WAITING, Process, Supervisor

LOOK_EVERY_S = 1.0
STOPPED_LOOKS = 2
PROBE_TIMEOUT_S = 2.0
SILENT_PROBES = 12
# A worker may load models in its event loop. One that hangs there is replaced by the gateway's own
# supervisor, which knows it better and takes less time than this (gateway/server/worker.py).
LOADING_PROBES = 360
START_S = 90.0
LONGEST_PAUSE_S = 30.0
# In a stack that is stopped the watchdog has ended before.
LOST_LOOKS = 10

_log = logging.getLogger(__name__)


@dataclass
class Watch:
    """What was seen of one process of a part; a restarted one begins anew."""

    pid: int
    since: float
    answered: bool = False
    missed: int = 0
    beat: float | None = None
    probe: Future[bool] | None = None


@dataclass
class Watchdog:
    """Looks once a second; `stopped` counts the looks at which a process was found stopped,
    `waiting` has since when a part waits for its next start, and `lost` counts the looks since the
    supervisor was last reached."""

    state: Path
    record: StackRecord
    watches: dict[str, Watch] = field(default_factory=dict)
    stopped: dict[int, int] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    lost: int = 0
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(len(PARTS)))

    def look(self, processes: dict[str, Process]) -> None:
        """One look at every part that runs; ends what hangs."""
        self._note_lost(processes)
        running = {
            part: process.pid
            for part in PARTS
            if part.name != "watchdog"
            and (process := processes.get(part.name)) is not None
            and process.pid is not None
        }
        mains = {pid: part.name for part, pid in running.items()}
        states = list(_states_of(mains))
        self._end_stopped(mains, states)
        held = {main for _, main, state in states if state == psutil.STATUS_TRACING_STOP}
        for part, pid in running.items():
            if pid in held:
                self.watches.pop(part.name, None)
                continue
            reason = self._hangs(part, pid)
            if reason is not None:
                _end(part.name, pid, reason)

    def overdue(self, processes: dict[str, Process]) -> list[str]:
        """Parts that have waited long enough for their next start.

        One whose start failed, as without its program's file, is stopped since, for which the
        supervisor does nothing more: it waits for another start.
        """
        now = time.monotonic()
        self.waiting = {
            name: self.waiting.get(name, now)
            for name, process in processes.items()
            if process.state == WAITING or (process.state == STOPPED and name in self.waiting)
        }
        due = [name for name, since in self.waiting.items() if now - since > LONGEST_PAUSE_S]
        self.waiting |= dict.fromkeys(due, now)
        return due

    def _note_lost(self, processes: dict[str, Process]) -> None:
        """Of a stack that runs there is one process at least: this one."""
        self.lost = 0 if processes else self.lost + 1
        if self.lost == LOST_LOOKS:
            _log.error(
                "the supervisor is not reached at %s, so that nothing that hangs is ended; if the "
                "file was removed, start the stack anew: %s",
                supervisor_socket(self.state), command_line("up", self.state),
            )  # fmt: skip

    def _end_stopped(self, mains: dict[int, str], states: Iterable[tuple[int, int, str]]) -> None:
        """A part of which any process is stopped, as a whole.

        Triton waits without end for an engine process that dies while it loads a model.
        """
        found = {(pid, main) for pid, main, state in states if state == psutil.STATUS_STOPPED}
        self.stopped = {pid: self.stopped.get(pid, 0) + 1 for pid, _ in found}
        for main in {main for pid, main in found if self.stopped[pid] >= STOPPED_LOOKS}:
            _end(mains[main], main, "it, or a process of it, was stopped")

    def _hangs(self, part: Part, pid: int) -> str | None:
        """Why the part's process is to be ended, None while it is not."""
        now = time.monotonic()
        watch = self.watches.get(part.name)
        if watch is None or watch.pid != pid:
            watch = self.watches[part.name] = Watch(pid, now)
        if watch.probe is not None and watch.probe.done():
            # Taken out first: one that failed would be asked for its answer for ever.
            done, watch.probe = watch.probe, None
            answered = _said(part, done)
            watch.answered |= answered
            watch.missed = 0 if answered else watch.missed + 1
        if watch.probe is None:
            # Without a thread for it the next look asks, and the other parts are looked at.
            with contextlib.suppress(RuntimeError):
                watch.probe = self.pool.submit(self._answers, part, watch)
        most = LOADING_PROBES if part.may_load else SILENT_PROBES
        if watch.answered and watch.missed >= most:
            return f"it left {watch.missed} probes unanswered"
        if not watch.answered and now - watch.since > START_S:
            return f"it did not answer within {START_S:.0f} s of its start"
        return None

    def _answers(self, part: Part, watch: Watch) -> bool:
        address = part.listens(self.record)
        if address is not None and part.live is not None:
            return probe(address, part.live, PROBE_TIMEOUT_S) != "does not answer"
        # A heartbeat: its time must change, whatever the machine's clock says. The first look only
        # remembers it, as the file may be that of the process before.
        before, watch.beat = watch.beat, _beat(beat_file(self.state, part))
        time.sleep(PROBE_TIMEOUT_S if before is None or watch.beat == before else 0)
        return before is not None and watch.beat is not None and watch.beat != before


def _said(part: Part, done: Future[bool]) -> bool:
    """Whether it answered; a probe that failed, such as at a file that cannot be read, is none."""
    failed = done.exception()
    if failed is not None:
        _log.warning("a probe of %s failed", part.name, exc_info=failed)
    return failed is None and done.result()


def _states_of(mains: Collection[int]) -> Iterable[tuple[int, int, str]]:
    """Every process of the parts' process groups, the group's main process, and psutil's state."""
    for pid in psutil.pids():
        try:
            group = os.getpgid(pid)
            if group in mains:
                yield pid, group, psutil.Process(pid).status()
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue


def _end(name: str, pid: int, reason: str) -> None:
    """End the part's process and its process group."""
    _log.warning("%s (pid %d) is ended: %s; the supervisor restarts the part", name, pid, reason)
    try:
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except OSError:
        # The other parts are looked at all the same.
        _log.exception("%s (pid %d) could not be ended", name, pid)


def _beat(path: Path) -> float | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


class _Starter(Protocol):
    def start_part(self, name: str) -> None: ...


def start_overdue(supervisor: _Starter, names: Iterable[str]) -> None:
    """One that cannot be started is logged, and the others are all the same."""
    for name in names:
        try:
            supervisor.start_part(name)
        except (OSError, Failure):
            _log.exception("%s could not be started", name)


def main(state: Path) -> None:
    """Look until told to end; a look that fails is logged, and the next one comes."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    watchdog = Watchdog(state, require_record(state))
    supervisor = Supervisor(state)
    own = beat_file(state, next(part for part in PARTS if part.name == "watchdog"))
    while True:
        begun = time.monotonic()
        try:
            processes = supervisor.processes()
            watchdog.look(processes)
            start_overdue(supervisor, watchdog.overdue(processes))
            own.touch()
        except (OSError, Failure):
            _log.exception("a look failed")
        time.sleep(max(0.1, LOOK_EVERY_S - (time.monotonic() - begun)))


if __name__ == "__main__":
    import sys

    main(Path(sys.argv[1]))
