"""A worker as its supervisor has it: a process, and the pipe on which it shows that it lives.

Tested by tests/gateway/test_workers.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

from transformer_serving.gateway.server.kept_tls import KeptTls
from transformer_serving.gateway.server.worker_order import Report, WorkerOrder

log = logging.getLogger("transformer_serving.gateway")
MODULE = "transformer_serving.gateway.server.worker"
_READ = 4096


class WorkerProcess:
    """Started with the order, whose `reports` and `tls` are made here. `started` once it takes
    requests. Raises OSError where the system has no room for one more.
    """

    def __init__(self, order: WorkerOrder, tls: KeptTls | None = None) -> None:
        self._reports, theirs = os.pipe()
        os.set_blocking(self._reports, False)
        self.tls = tls
        order = replace(order, reports=theirs, tls=None if tls is None else tls.copy)
        held = () if tls is None else tls.numbers
        # As this process was started: -P keeps the working folder out of the path.
        options = ["-P"] if sys.flags.safe_path else []
        try:
            self._process = subprocess.Popen(
                [sys.executable, *options, "-m", MODULE, order.line()],
                pass_fds=(order.listener, order.parent, theirs, *held),
            )
        except BaseException:
            os.close(self._reports)
            raise
        finally:
            os.close(theirs)
        self._leave_seconds = order.leave_seconds
        self._leave_by: float | None = None
        self._heard = time.monotonic()
        self._killed = False
        self.started = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """As Popen has it: None while it runs, negative for a signal."""
        return self._process.poll()

    @property
    def silent_seconds(self) -> float:
        """Since the last sign of life; to be read after `hear`."""
        return time.monotonic() - self._heard

    @property
    def was_told(self) -> bool:
        return self._leave_by is not None

    def hear(self) -> None:
        """Read what has come."""
        with contextlib.suppress(BlockingIOError):
            while raw := os.read(self._reports, _READ):
                self._heard = time.monotonic()
                self.started |= Report.STARTED.value in raw

    def pardon(self, seconds: float) -> None:
        """So long it could neither be heard nor leave."""
        self._heard += seconds
        if self._leave_by is not None:
            self._leave_by += seconds

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        """To leave: with SIGTERM in order, with MAKE_WAY without the drain, as others serve on."""
        if self._leave_by is None:
            self._leave_by = time.monotonic() + self._leave_seconds
        self._process.send_signal(number)

    def kill_if_late(self) -> None:
        """One that was told in the middle of its start may hang in the ClearML SDK without end."""
        if self._leave_by is not None and time.monotonic() > self._leave_by:
            self.kill(f"has not left {self._leave_seconds:g} s after its signal")

    def kill(self, why: str) -> None:
        """Said once: one that waits for a disk that is gone lives on until it is back."""
        if self._killed:
            return
        self._killed = True
        log.error("worker %d %s and is killed", self.pid, why)
        self._process.kill()

    def close(self) -> None:
        """After its end."""
        os.close(self._reports)
