"""The processes of the gateway: started, replaced, renewed and ended without waiting for any one.

All share one listening socket, which stays open while a worker is replaced. A worker is replaced
when it has ended, when it was silent for _HUNG_S, and, one after the other and only once its
successor is ready and serves, when the certificate changes or at SIGHUP.

Tested by tests/gateway/test_workers.py.
"""

from __future__ import annotations

import logging
import signal
import socket
import time
from dataclasses import replace

from transformer_serving.gateway.server.worker_order import WorkerOrder
from transformer_serving.gateway.server.worker_process import WorkerProcess
from transformer_serving.gateway.watched_files import WatchedFiles

log = logging.getLogger("transformer_serving.gateway")
_ROUND_S = 0.25
# A worker that is only short of processor time may not even give a sign of life for a while.
_HUNG_S = 60.0
# Before the next try where one ended in its start.
_PAUSE_S = 1.0
# The same of a successor, which nobody waits for: a start costs seconds of processor time.
_RENEWAL_PAUSE_S = 5.0
# The exit status where no worker could be started, as uvicorn's.
_NOT_STARTED = 3


class Supervisor:
    """Runs `count` workers on the listener until SIGTERM or SIGINT.

    `drain_seconds` after that the listener closes.
    """

    def __init__(
        self, listener: socket.socket, count: int, order: WorkerOrder, drain_seconds: float
    ) -> None:
        self._listener = listener
        self._count = count
        self._order = order
        self._drain_seconds = drain_seconds
        self._files = WatchedFiles(order.tls.files() if order.tls else ())
        self._workers: list[WorkerProcess] = []
        self._leaving: list[WorkerProcess] = []
        # Those that shall make way, and of the first of them the successor that is starting.
        self._outdated: list[WorkerProcess] = []
        self._successor: WorkerProcess | None = None
        self._failed_starts = 0
        self._any_started = False
        self._not_before = 0.0
        self._told_at: float | None = None
        self._asked_to_renew = False
        self._renew_not_before = 0.0

    def run(self) -> int:
        """Until told to stop and all workers have ended; the exit status."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_renew)
        status = 0
        while self._told_at is None and status == 0:
            self._hear()
            status = self._replace()
            self._renew()
            self._reap()
            time.sleep(_ROUND_S)
        self._end()
        return status

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
                log.error("worker %d was silent for %g s and is killed", worker.pid, _HUNG_S)
                worker.kill()
            elif worker.status is not None:
                log.error("worker %d has ended with %s", worker.pid, worker.status)
                self._workers.remove(worker)
                worker.close()
                if not worker.started:
                    self._failed_starts += 1
                    self._not_before = time.monotonic() + _PAUSE_S
        if not self._any_started and self._failed_starts > self._count:
            log.error("no worker could be started; the lines above say why")
            return _NOT_STARTED
        if time.monotonic() >= self._not_before:
            while len(self._workers) < self._count:
                self._workers.append(WorkerProcess(self._order))
        return 0

    def _renew(self) -> None:
        if self._files.changed() or self._asked_to_renew:
            self._asked_to_renew = False
            if self._is_usable():
                # One that is starting may have read the files before they changed.
                self._outdated = self._serving_and_starting()
        if self._successor is None:
            self._outdated = [one for one in self._outdated if one in self._workers]
            if self._outdated and time.monotonic() >= self._renew_not_before:
                self._successor = WorkerProcess(replace(self._order, when_ready=True))
        elif self._successor.status is not None:
            log.error(
                "worker %d ended in its start; the old ones serve on, another is tried in %g s",
                self._successor.pid, _RENEWAL_PAUSE_S,
            )  # fmt: skip
            self._successor.close()
            self._successor = None
            self._renew_not_before = time.monotonic() + _RENEWAL_PAUSE_S
        elif self._successor.silent_seconds > _HUNG_S:
            self._successor.kill()
        elif self._successor.started:
            new, self._successor = self._successor, None
            # Without one that it was for, which may have died meanwhile, it is one too many itself.
            old = next((one for one in self._outdated if one in self._workers), new)
            self._workers.append(new)
            self._make_way(old)

    def _make_way(self, old: WorkerProcess) -> None:
        self._workers.remove(old)
        self._leaving.append(old)
        # The other workers serve on: nobody must see this one as not ready.
        old.tell(signal.SIGHUP)
        log.info("worker %d makes way", old.pid)

    def _is_usable(self) -> bool:
        try:
            if self._order.tls is not None:
                self._order.tls.check()
        except ValueError as error:
            log.error("the old certificate stays: %s", error)
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
            time.sleep(_ROUND_S)
        self._listener.close()
