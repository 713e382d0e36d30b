"""SIGTERM in order: not ready first, the listener closes after the drain, requests finish.

Finishing what runs is the server's own work. The delay before it goes into the signal's handler,
because no other place is reached by every server: uvicorn with one worker or several, gunicorn.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

log = logging.getLogger("transformer_serving.gateway")
# For ClearML's last reports, once no request is left; without its server the SDK tries for minutes.
LEAVE_S = 10.0


class Shutdown:
    """Whether the worker was told to stop. `leaving` is it also where others serve on."""

    def __init__(self, drain_seconds: float) -> None:
        self.stopping = False
        self._makes_way = False
        self._told = False
        self._drain_seconds = drain_seconds

    def arm(self) -> None:
        """Stand before the server's own handler of SIGTERM; called in its running loop."""
        server = signal.getsignal(signal.SIGTERM)
        if threading.current_thread() is not threading.main_thread() or not callable(server):
            return
        loop = asyncio.get_running_loop()
        signal.signal(signal.SIGTERM, self._handler(loop, server))

    @property
    def leaving(self) -> bool:
        return self.stopping or self._makes_way

    def make_way(self) -> None:
        self._makes_way = True

    def leave(self) -> None:
        """Called when the app has ended: the process ends too, whoever is still waited for."""
        if self._told:
            last = threading.Timer(LEAVE_S, os._exit, (0,))
            last.daemon = True
            last.start()

    def _handler(
        self, loop: asyncio.AbstractEventLoop, server: Callable[[int, FrameType | None], object]
    ) -> Callable[[int, FrameType | None], None]:
        def on_term(number: int, frame: FrameType | None) -> None:
            self._told = True
            # A second SIGTERM means now.
            if self.stopping or not self._drain_seconds:
                self.stopping = True
                server(number, frame)
                return
            self.stopping = True
            log.info("SIGTERM: not ready, closing in %g s", self._drain_seconds)
            loop.call_soon_threadsafe(loop.call_later, self._drain_seconds, server, number, None)

        return on_term
