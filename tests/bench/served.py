"""An ASGI app of a test's, served by uvicorn in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import uvicorn

from tests.gateway.certificates import Pair


@contextmanager
def served(
    app: Any,
    keep_s: int = 5,
    tls: Pair | None = None,
    loop: Literal["auto", "asyncio", "uvloop"] = "auto",
) -> Iterator[int]:
    """Its port. Connections are closed that nobody asks on for `keep_s` after an answer."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    running = uvicorn.Server(
        uvicorn.Config(
            app,
            loop=loop,
            log_level="error",
            lifespan="off",
            timeout_keep_alive=keep_s,
            ssl_certfile=None if tls is None else tls.cert,
            ssl_keyfile=None if tls is None else tls.key,
        )
    )
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()
        listener.close()
