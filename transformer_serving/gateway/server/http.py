"""Granian's HTTP before an ASGI app, in an event loop of ours.

Heads and bodies are parsed in Granian's own thread, outside Python's lock. HTTP/1.1 only: a
connection that may also become HTTP/2 is told from the other by its first bytes, for which Granian
waits without end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import socket
from typing import Any

from granian.http import HTTP1Settings

from transformer_serving.gateway.asgi import App, Receive
from transformer_serving.gateway.connections import HEAD_SECONDS
from transformer_serving.gateway.server.handover import Handover, TurnsAway
from transformer_serving.gateway.server.tls import Tls

# Its stub describes another release than the one that is installed.
_native: Any = importlib.import_module("granian._granian")
# Bytes of a request's head, and of what is read ahead of a body.
MAX_HEAD_BYTES = 65_536
# For Granian's threads: one parses, one hands requests over, those beyond are for files only.
_PARSERS = _HANDERS_OVER = _FILE_THREADS = 1
_IDLE_S = 30


class HttpServer:
    """Serves `app` on a listening socket, which it takes over, until `stop` and the last answer.

    `connections` are taken at a time; `backlog` more wait in the socket. `turns_away` is asked in
    Granian's thread, where the loop is a WorkerLoop.
    """

    def __init__(
        self,
        app: App,
        listener: socket.socket,
        *,
        backlog: int,
        connections: int,
        tls: Tls | None = None,
        head_seconds: float = HEAD_SECONDS,
        turns_away: TurnsAway | None = None,
    ) -> None:
        self.ended = asyncio.Event()
        self._app = app
        self._listener = listener
        self._identity = _identity(listener.fileno())
        self._backlog = backlog
        self._connections = connections
        self._tls = tls
        self._head_seconds = head_seconds
        self._turns_away = turns_away
        self._signal = _native.WorkerSignal()
        self._stopped = False

    def start(self) -> None:
        """To be called in the running loop that the app shall run in."""
        loop = asyncio.get_running_loop()
        self._signal.add_cb(lambda: loop.call_soon_threadsafe(self.ended.set))
        worker, is_unix = self._worker()
        serve = worker.serve_mtr_uds if is_unix else worker.serve_mtr
        serve(Handover(self._answer, self._turns_away), loop, self._signal)

    def take_no_more(self) -> None:
        """Leave new connections to the other processes on the listener; serve those that are here.

        Granian stops both at once, and then closes each connection on which no request runs:
        one that it has just taken, of which TLS or the first request is still on its way, too. So
        its listener becomes a socket that nobody knows.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as deaf:
            # Without a name it gets one that no path leads to (unix(7), "Autobind feature").
            deaf.bind("")
            deaf.listen(1)
            deaf.setblocking(False)
            for number in map(int, os.listdir("/proc/self/fd")):
                with contextlib.suppress(OSError):
                    if _identity(number) == self._identity:
                        os.dup2(deaf.fileno(), number, inheritable=False)

    def stop(self) -> None:
        """Close the listener; `ended` is set when every request that runs has its answer."""
        if not self._stopped:
            self._stopped = True
            self._signal.set()

    async def _answer(self, watcher: Any, receive: Receive) -> None:
        try:
            await self._app(watcher.scope, receive, watcher.proto.send)
        except BaseException as error:
            # Logged there, and answered with 500 where nothing was answered yet.
            watcher.err(error)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return
        watcher.done()

    def _worker(self) -> tuple[Any, bool]:
        is_unix = self._listener.family == socket.AF_UNIX
        holder = _native.SocketHolder(self._listener.detach(), is_unix, self._backlog)
        http1 = HTTP1Settings(
            header_read_timeout=int(1000 * self._head_seconds), max_buffer_size=MAX_HEAD_BYTES
        )
        worker = _native.ASGIWorker(
            1, (None, holder), None, _PARSERS, _FILE_THREADS, _HANDERS_OVER, _IDLE_S,
            self._connections, "1", http1, None, False, None, *self._tls_values(), (None, None),
        )  # fmt: skip
        return worker, is_unix

    def _tls_values(self) -> tuple[object, ...]:
        """As Granian takes them: on, cert, key, password, least version, CA, CRLs, CA demanded."""
        if self._tls is None:
            return False, None, None, None, "tls1.2", None, [], False
        ca = self._tls.client_ca
        named = None if ca is None else str(ca)
        cert, key = str(self._tls.cert), str(self._tls.key)
        return True, cert, key, None, "tls1.2", named, [], ca is not None


def _identity(number: int) -> tuple[int, int]:
    """The same for every number under which a process has one file."""
    status = os.fstat(number)
    return status.st_dev, status.st_ino
