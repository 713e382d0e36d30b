"""Serves the controller's page: GET /metrics, in threads of its own.

Where there are keys it takes one of those for metrics, by the gateway's rule, and no other.

Tested by tests/engine/test_metrics_server.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.keys import VARIABLE
from transformer_serving.contract.known_keys import KnownKeys, forbidden

_log = logging.getLogger(__name__)
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"
# A client that sends nothing must not keep a thread.
_CLIENT_S = 10.0
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
        server = ThreadingHTTPServer(parse_address(address), _handler(page, keys))
    except OSError as error:
        _log.error("no metrics at %s: %s; choose another --metrics-address", address, error)
        return None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def _handler(page: Callable[[], str], keys: KnownKeys | None) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_S

        def do_GET(self) -> None:
            status, kind, content = _answer(self, page, keys)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            if status == _UNAUTHORIZED:
                self.send_header("WWW-Authenticate", "Bearer")
            # Who asked may have left by now, as Prometheus does at the end of its patience.
            with contextlib.suppress(ConnectionError):
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
