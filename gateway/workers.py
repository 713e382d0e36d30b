"""uvicorn's workers, looked after without waiting for any one of them."""

from __future__ import annotations

import time
from socket import socket

from uvicorn import Config
from uvicorn.supervisors import multiprocess
from uvicorn.supervisors.multiprocess import Process


class Worker(Process):
    """A worker that is asked in one round whether it lives, and heard in the next ones.

    uvicorn's own waits for the answer, up to the whole limit: while one worker hangs, or was killed
    before it could answer, the end of another goes unnoticed and SIGTERM unheard.
    """

    def __init__(self, config: Config, sockets: list[socket]) -> None:
        super().__init__(config, sockets)
        self._asked: float | None = None

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


def look_after_workers() -> None:
    """Let uvicorn's supervisor make its workers of this kind."""
    multiprocess.Process = Worker  # type: ignore[misc]
