"""An ASGI app of a test's, served by uvicorn in a thread of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def served(app: Any) -> Iterator[int]:
    """Its port."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    running = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join()
        listener.close()
