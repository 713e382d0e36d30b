"""Serves the controller's page: GET /metrics, in threads of its own.

Where there are keys it takes one of those for metrics, by the gateway's rule, and no other.

Tested by tests/engine/test_metrics_server.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.keys import VARIABLE
from transformer_serving.contract.known_keys import KnownKeys, forbidden

_log = logging.getLogger(__name__)
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"
# Whoever reaches the port is heard before a key is asked for: for so long until all of the head has
# come, and again until the answer is taken, so many at a time, each in a thread.
_CLIENT_S = 10.0
_CONNECTIONS = 16
_UNAUTHORIZED = 401


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError("the address of the metrics must be host:port")
    return host.strip("[]"), int(port)


def keys_of(environment: Mapping[str, str]) -> KnownKeys | None:
    """None where no file is named. With one that is wrong nobody is let in until it is right:

    models are loaded meanwhile.
    """
    named = environment.get(VARIABLE)
    return KnownKeys(Path(named), _log) if named else None


def serve_metrics(
    address: str, page: Callable[[], str], keys: KnownKeys | None = None
) -> ThreadingHTTPServer | None:
    """The server, which runs until the process ends; None where the address is taken.

    Models are served without their figures, so a taken port is told and no more.
    """
    try:
        server = _Server(parse_address(address), _handler(page, keys))
    except OSError as error:
        _log.error("no metrics at %s: %s; choose another --metrics-address", address, error)
        return None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    """With so many connections at a time. A further one ends the one that has been longest without
    its whole head, so that who drips keeps nobody else out.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._changes = threading.Condition()
        self._open: set[socket.socket] = set()
        self._asking: dict[socket.socket, bool] = {}  # the oldest first
        super().__init__(address, handler)

    def has_asked(self, connection: socket.socket) -> bool:
        """False for one that was ended first: nobody would read the answer."""
        with self._changes:
            return self._asking.pop(connection, False)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._changes:
            if len(self._open) >= _CONNECTIONS and not self._ends_the_oldest():
                return False
            self._open.add(request)
            self._asking[request] = True
        return True

    def _ends_the_oldest(self) -> bool:
        """Whether there is room by it: its thread, which reads the end of it, has gone."""
        oldest = next(iter(self._asking), None)
        if oldest is None:
            return False
        del self._asking[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
        return self._changes.wait_for(lambda: oldest not in self._open, _CLIENT_S)

    def shutdown_request(self, request: Any) -> None:
        with self._changes:
            self._open.discard(request)
            self._asking.pop(request, None)
            self._changes.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing is wrong where who asked has left, as Prometheus does at the end of its patience,
        or was ended for another."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _Head(io.RawIOBase):
    """What a connection sends until `end` on the monotonic clock.

    Raises TimeoutError, also where it was ended before its head: http.server would take that for
    the head's own end.
    """

    def __init__(self, connection: socket.socket, end: float) -> None:
        self._connection = connection
        self._end = end

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        got = self._connection.recv_into(buffer)
        if not got:
            raise TimeoutError
        return got


def _handler(page: Callable[[], str], keys: KnownKeys | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def setup(self) -> None:
            super().setup()
            self.rfile.close()
            self.rfile = io.BufferedReader(_Head(self.connection, time.monotonic() + _CLIENT_S))

        def do_GET(self) -> None:
            if not cast(_Server, self.server).has_asked(self.connection):
                return
            self.connection.settimeout(_CLIENT_S)
            status, kind, content = _answer(self, page, keys)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            if status == _UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """A scrape is not worth a line."""

    return Handler


def _answer(
    asked: BaseHTTPRequestHandler, page: Callable[[], str], keys: KnownKeys | None
) -> tuple[int, str, bytes]:
    """Status, type and content."""
    if keys is not None:
        headers = {name.lower().encode(): value.encode() for name, value in asked.headers.items()}
        try:
            if not keys.key_of(headers).metrics:
                raise forbidden()
        except ServingError as error:
            return error.kind.status, "application/json", json.dumps(error.body()).encode()
    if asked.path.split("?", 1)[0] != "/metrics":
        return 404, "text/plain; charset=utf-8", b"the figures are at /metrics\n"
    return 200, _CONTENT, page().encode()
