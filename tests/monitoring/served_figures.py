"""Figures that a Prometheus can read, served as the controller serves its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from transformer_serving.contract.known_keys import KnownKeys
from transformer_serving.engine.controller.metrics_server import serve_metrics


@contextmanager
def served_figures(text: Callable[[], str], keys: KnownKeys | None = None) -> Iterator[str]:
    """The host:port of the page."""
    server = serve_metrics("127.0.0.1:0", text, keys)
    assert server is not None
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
