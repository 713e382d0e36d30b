"""The processes of the gateway: started, replaced, renewed and ended without waiting for any one.

All share one listening socket, which stays open while a worker is replaced. A worker is replaced
when it has ended, when it was silent for _HUNG_S, and, one after the other and only once its
successor is ready and serves, when the certificate changes or at SIGHUP.

Tested by tests/gateway/test_workers.py.
"""

from __future__ import annotations

import logging
import math
import signal
import socket
import time
from dataclasses import replace

from transformer_serving.gateway.figures.folder import note_end
from transformer_serving.gateway.server.kept_tls import KeptTls
from transformer_serving.gateway.server.worker_order import MAKE_WAY, WorkerOrder
from transformer_serving.gateway.server.worker_process import WorkerProcess
from transformer_serving.gateway.watched_files import WatchedFiles

log = logging.getLogger("transformer_serving.gateway")
_ROUND_S = 0.25
# A worker that is only short of processor time may not even give a sign of life for a while.
_HUNG_S = 60.0
_SILENT = f"was silent for {_HUNG_S:g} s"
# A round that took so much longer was none: this process was stopped or paused, and mostly all.
_STALLED_S = 2.0
# Before the next try where one ended in its start.
_PAUSE_S = 1.0
# The same of a successor, which nobody waits for: a start costs seconds of processor time. And
# before the certificate's files are read again that could not be used.
_RENEWAL_PAUSE_S = 5.0
# The exit status where no worker could be started, as uvicorn's.
_NOT_STARTED = 3


class Supervisor:
    """Runs `count` workers on the listener until SIGTERM or SIGINT.

    `drain_seconds` after that the listener closes.
    """

    def __init__(
        self, listener: socket.socket, count: int, order: WorkerOrder, drain_seconds: float,
        tls: KeptTls | None = None,
    ) -> None:  # fmt: skip
        self._listener = listener
        self._count = count
        self._order = order
        self._drain_seconds = drain_seconds
        # What was written since they were read, while the port was waited for, is a renewal.
        self._files = tls.watched if tls else WatchedFiles(())
        # What the newest worker that serves was started with, and what a successor will be.
        self._proven_tls = self._newest_tls = tls
        self._workers: list[WorkerProcess] = []
        self._leaving: list[WorkerProcess] = []
        # Those that shall make way, and of the first of them the successor that is starting.
        self._outdated: list[WorkerProcess] = []
        self._successor: WorkerProcess | None = None
        self._failed_starts = 0
        self._any_started = False
        # Why the last process could not even be made.
        self._no_room = ""
        self._not_before = 0.0
        self._told_at: float | None = None
        self._asked_to_renew = False
        self._renew_not_before = 0.0
        # When the files are read next, and why they could not be used.
        self._read_not_before = math.inf
        self._refusal = ""
        self._rested = time.monotonic()

    def run(self) -> int:
        """Until told to stop and all workers have ended; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        # Under nohup the end of a terminal means nothing.
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._on_renew)
        status = 0
        while self._told_at is None and status == 0:
            self._hear()
            status = self._replace()
            self._renew()
            self._reap()
            self._rest()
        self._end()
        return status

    def _rest(self) -> None:
        """Until the next round. Time in which nothing ran here, as of a container that was paused,
        is nobody's silence and nobody's delay.
        """
        time.sleep(_ROUND_S)
        before, self._rested = self._rested, time.monotonic()
        lost = self._rested - before - _ROUND_S
        if lost > _STALLED_S:
            for worker in self._every():
                worker.pardon(lost)

    def _on_stop(self, *_: object) -> None:
        self._told_at = self._told_at or time.monotonic()
        # Told again they leave without the drain.
        for worker in self._every():
            worker.tell()

    def _on_renew(self, *_: object) -> None:
        self._asked_to_renew = True

    def _serving_and_starting(self) -> list[WorkerProcess]:
        return [*self._workers, *([] if self._successor is None else [self._successor])]

    def _every(self) -> list[WorkerProcess]:
        return [*self._serving_and_starting(), *self._leaving]

    def _hear(self) -> None:
        for worker in self._every():
            served = worker.started
            worker.hear()
            if worker.started and not served:
                self._any_started = True
                log.info("worker %d serves", worker.pid)

    def _replace(self) -> int:
        """Those that ended or hang; the exit status where none can be started, else 0."""
        for worker in list(self._workers):
            if worker.status is None and worker.silent_seconds > _HUNG_S:
                worker.kill(_SILENT)
            elif worker.status is not None:
                log.error("worker %d has ended with %s", worker.pid, worker.status)
                self._workers.remove(worker)
                worker.close()
                note_end()
                if not worker.started:
                    self._failed_starts += 1
                    self._not_before = time.monotonic() + _PAUSE_S
        if not self._any_started and self._failed_starts > self._count:
            log.error("no worker could be started; the lines above say why")
            return _NOT_STARTED
        if time.monotonic() >= self._not_before:
            self._fill_up()
        return 0

    def _fill_up(self) -> None:
        while len(self._workers) < self._count:
            # Beside one that serves it would answer 503 to its part of /health/ready, and the whole
            # container be taken out.
            serves = any(one.started and one.status is None for one in self._workers)
            made = self._make(replace(self._order, when_ready=serves), self._proven_tls)
            if made is None:
                # Without any other it is a start that failed; else the others serve on.
                self._failed_starts += not self._workers
                self._not_before = time.monotonic() + _PAUSE_S
                return
            self._workers.append(made)
            if made.tls is not self._newest_tls:
                self._outdated.append(made)

    def _make(self, order: WorkerOrder, tls: KeptTls | None) -> WorkerProcess | None:
        """None where there is no room for one more process, which ends none of the others."""
        try:
            made = WorkerProcess(order, tls)
        except OSError as error:
            # Once, not at every try.
            if str(error) != self._no_room:
                log.error(
                    "no process can be started for a worker, which is tried again: %s; allow more "
                    "threads (INFERENCE_PIDS of compose), open files or memory, or ask for fewer "
                    "workers (CLEARML_SERVING_NUM_PROCESS)", error.strerror or error,
                )  # fmt: skip
            self._no_room = str(error)
            return None
        self._no_room = ""
        return made

    def _renew(self) -> None:
        self._read_when_due()
        if self._successor is None:
            self._outdated = [one for one in self._outdated if one in self._workers]
            if self._outdated and time.monotonic() >= self._renew_not_before:
                order = replace(self._order, when_ready=True)
                self._successor = self._make(order, self._newest_tls)
                if self._successor is None:
                    self._renew_not_before = time.monotonic() + _RENEWAL_PAUSE_S
        elif self._successor.status is not None:
            log.error(
                "worker %d ended in its start; the old ones serve on, another is tried in %g s",
                self._successor.pid, _RENEWAL_PAUSE_S,
            )  # fmt: skip
            note_end()
            self._successor.close()
            self._successor = None
            self._renew_not_before = time.monotonic() + _RENEWAL_PAUSE_S
        elif self._successor.silent_seconds > _HUNG_S:
            self._successor.kill(_SILENT)
        elif self._successor.started:
            new, self._successor = self._successor, None
            self._proven_tls = new.tls
            # Without one that it was for, which may have died meanwhile, it is one too many itself.
            old = next((one for one in self._outdated if one in self._workers), new)
            self._workers.append(new)
            self._make_way(old)

    def _read_when_due(self) -> None:
        """At once where the files changed or SIGHUP asks for it. Until it succeeds it is tried
        again: where only room or open files were lacking, nothing tells when they are there.
        """
        if self._files.changed() or self._asked_to_renew:
            self._asked_to_renew = False
            self._read_not_before, self._refusal = 0.0, ""
        if time.monotonic() < self._read_not_before:
            return
        if self._read_tls():
            self._read_not_before = math.inf
            # One that is starting may have read the files before they changed.
            self._outdated = self._serving_and_starting()
        else:
            self._read_not_before = time.monotonic() + _RENEWAL_PAUSE_S

    def _make_way(self, old: WorkerProcess) -> None:
        self._workers.remove(old)
        self._leaving.append(old)
        # The other workers serve on: nobody must see this one as not ready.
        old.tell(MAKE_WAY)
        log.info("worker %d makes way", old.pid)

    def _read_tls(self) -> bool:
        """For successors; whether they can be started with what is there now."""
        try:
            if self._newest_tls is not None:
                self._newest_tls = KeptTls(self._newest_tls.source)
        except ValueError as error:
            # Once, not at every try.
            if str(error) != self._refusal:
                log.error("the old certificate stays: %s", error)
            self._refusal = str(error)
            return False
        return True

    def _reap(self) -> None:
        for worker in list(self._leaving):
            worker.kill_if_late()
            if worker.status is not None:
                self._leaving.remove(worker)
                worker.close()

    def _end(self) -> None:
        """Every worker, within the time that each has; the listener closes after the drain."""
        begun = time.monotonic()
        for worker in self._every():
            if not worker.was_told:
                worker.tell()
        self._leaving, self._workers, self._successor = self._every(), [], None
        while self._leaving:
            self._reap()
            if time.monotonic() - begun > self._drain_seconds:
                self._listener.close()
            self._rest()
        self._listener.close()
