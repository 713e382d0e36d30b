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
import time
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.worker.open_streams import streams_ended

if TYPE_CHECKING:
    from transformer_serving.gateway.asgi import Message, Receive, Send

log = logging.getLogger("transformer_serving.gateway")
# For ClearML's last reports, once no request is left or their time is over; without its server the
# SDK tries for minutes.
LEAVE_S = 10.0
# For engines to end what nobody waits for any more.
_LAST_STREAMS_S = 5.0
# For requests to be answered that are given up, and then to end that are cancelled.
_GIVEN_UP_S = 1.0
GIVING_UP_S = 3 * _GIVEN_UP_S
# Within which a SIGTERM is the one before it, come by another way: who signals a whole group of
# processes (systemd, supervisord's stopasgroup, dumb-init) reaches a worker itself and through its
# supervisor.
_SAME_SIGNAL_S = 1.0
_ENDED = ("lifespan.shutdown.complete", "lifespan.shutdown.failed")


class Shutdown:
    """Whether the worker was told to stop. `leaving` is it also where others serve on."""

    def __init__(self, drain_seconds: float) -> None:
        self.stopping = False
        self._makes_way = False
        self._told_at: float | None = None
        self._gave_up_at: float | None = None
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

    def give_up(self) -> None:
        """The time of the requests is over, and what ends them is the worker's own."""
        self._gave_up_at = time.monotonic()

    def leave(self) -> None:
        """Called when the app has ended: the process ends too, whoever is still waited for.

        What giving up took is of LEAVE_S: a container has no more (contract/settings/stop.py).
        """
        if self._told_at is not None:
            spent = 0.0 if self._gave_up_at is None else time.monotonic() - self._gave_up_at
            last = threading.Timer(max(0.0, LEAVE_S - spent), os._exit, (0,))
            last.daemon = True
            last.start()

    def _handler(
        self, loop: asyncio.AbstractEventLoop, server: Callable[[int, FrameType | None], object]
    ) -> Callable[[int, FrameType | None], None]:
        def on_term(number: int, frame: FrameType | None) -> None:
            before, now = self._told_at, time.monotonic()
            if before is not None and now - before < _SAME_SIGNAL_S:
                return
            self._told_at = now
            # A second SIGTERM means now.
            if self.stopping or not self._drain_seconds:
                self.stopping = True
                server(number, frame)
                return
            self.stopping = True
            loop.call_soon_threadsafe(loop.call_later, self._drain_seconds, server, number, None)
            # Not here: this may be in the middle of another line, which refuses a second one.
            line = "SIGTERM: not ready, closing in %g s"
            loop.call_soon_threadsafe(log.info, line, self._drain_seconds)

        return on_term


async def end_running(running: Collection[asyncio.Task[Any] | None]) -> None:
    """Of tasks that were told to end, cancel those that do not."""
    if running:
        log.warning("the worker leaves, %d requests that still run are ended", len(running))
    # Twice: one that was cancelled once answers that, and may wait for its caller.
    for _ in range(2):
        if left := [task for task in running if task is not None and not task.done()]:
            await asyncio.wait(left, timeout=_GIVEN_UP_S)
        for task in left:
            task.cancel()


class Lifespan:
    """What begins when the app has started, and ends before and after its end."""

    def __init__(
        self, shutdown: Shutdown, *, started: Callable[[], None],
        stopping: Sequence[Callable[[], None]], ended: Callable[[], None],
    ) -> None:  # fmt: skip
        self._shutdown = shutdown
        self._started = started
        self._stopping = stopping
        self._ended = ended

    def around(self, receive: Receive, send: Send) -> tuple[Receive, Send]:
        """The host's own messages, seen on their way."""

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self._shutdown.stopping = True
                for stop in self._stopping:
                    stop()
                if not await streams_ended(_LAST_STREAMS_S):
                    log.warning("streams of engines are cut off after %g s", _LAST_STREAMS_S)
            return message

        async def told(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                self._shutdown.arm()
                self._started()
            elif message["type"] in _ENDED:
                self._ended()
                self._shutdown.leave()
            await send(message)

        return heard, told
