"""uvicorn's workers, looked after without waiting for any one of them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from socket import socket

from uvicorn import Config
from uvicorn.supervisors import multiprocess
from uvicorn.supervisors.multiprocess import Process

from transformer_serving.gateway.settings import read_settings
from transformer_serving.gateway.shutdown import LEAVE_S

log = logging.getLogger("transformer_serving.gateway")
# Beyond all that a worker may take from SIGTERM on.
_SPARE_S = 5.0


class Worker(Process):
    """A worker that is asked in one round whether it lives, and heard in the next ones.

    uvicorn's own waits for the answer, up to the whole limit: while one worker hangs, or was killed
    before it could answer, the end of another goes unnoticed and SIGTERM unheard.
    """

    def __init__(self, config: Config, sockets: list[socket]) -> None:
        super().__init__(config, sockets)
        self._asked: float | None = None
        self._leave_s = (
            read_settings().drain_seconds
            + (config.timeout_graceful_shutdown or 0)
            + LEAVE_S
            + _SPARE_S
        )
        self._leave_by: float | None = None

    def target(self, sockets: list[socket] | None = None) -> None:
        """What the new process runs."""
        threading.Thread(target=self._leave_with_the_parent, daemon=True).start()
        super().target(sockets)

    def _leave_with_the_parent(self) -> None:
        """End as at SIGTERM when the parent was killed: the port is the next parent's.

        At once before the start is over, where nobody waits for an answer and the ClearML SDK may
        wait without end.
        """
        parent = multiprocessing.parent_process()
        if parent is None:
            return
        parent.join()
        log.warning("the parent process has ended, worker %d leaves", os.getpid())
        if not self.server.started:
            os._exit(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(self._leave_s)
        os.kill(os.getpid(), signal.SIGKILL)

    def is_alive(self, timeout: float = 5) -> bool:
        """Whether the process runs, and has answered within the last `timeout` seconds."""
        if not self.process.is_alive():
            return False
        try:
            if self._asked is None:
                self._asked = time.monotonic()
                self.parent_conn.send(b"ping")
            elif self.parent_conn.poll():
                self.parent_conn.recv()
                self._asked = None
        except (OSError, EOFError):
            return False
        return self._asked is None or time.monotonic() - self._asked < timeout

    def terminate(self) -> None:
        super().terminate()
        self._leave_by = time.monotonic() + self._leave_s

    def join(self) -> None:
        """Wait for its end; after SIGTERM no longer than a worker may take that does as it should.

        One that was told in the middle of its start may hang in the ClearML SDK without end.
        """
        if self._leave_by is not None:
            self.process.join(max(0.0, self._leave_by - time.monotonic()))
            if self.process.is_alive():
                log.warning("worker %s has not left %g s after SIGTERM", self.pid, self._leave_s)
                self.process.kill()
        super().join()


def look_after_workers() -> None:
    """Let uvicorn's supervisor make its workers of this kind."""
    multiprocess.Process = Worker  # type: ignore[misc]
