"""Serves the controller's page: GET /metrics, in threads of its own.

Tested by tests/engine/test_proofs.py.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_log = logging.getLogger(__name__)
_CONTENT = "text/plain; version=0.0.4; charset=utf-8"
# A client that sends nothing must not keep a thread.
_CLIENT_S = 10.0


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError("the address of the metrics must be host:port")
    return host.strip("[]"), int(port)


def serve_metrics(address: str, page: Callable[[], str]) -> ThreadingHTTPServer | None:
    """The server, which runs until the process ends; None where the address is taken.

    Models are served without their figures, so a taken port is told and no more.
    """
    try:
        server = ThreadingHTTPServer(parse_address(address), _handler(page))
    except OSError as error:
        _log.error("no metrics at %s: %s; choose another --metrics-address", address, error)
        return None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server


def _handler(page: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_S

        def do_GET(self) -> None:
            if self.path.split("?", 1)[0] != "/metrics":
                self.send_error(404, "the figures are at /metrics")
                return
            content = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", _CONTENT)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """A scrape is not worth a line."""

    return Handler
