"""The ASGI app: health routes, and everything else to clearml-serving's app, unmodified.

Serve it with `uvicorn gateway.app:app`. Start-up and shutdown events pass through to the host.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gateway.host import host

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def is_ready() -> bool:
    """Whether the host has read its configuration and its sync thread is alive."""
    sync = getattr(host.processor, "_sync_daemon_thread", None)
    return sync is not None and sync.is_alive()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    path = scope.get("path", "") if scope["type"] == "http" else ""
    if not path.startswith("/health/"):
        await host.app(scope, receive, send)
    elif path == "/health/live":
        await _answer(send, 200, {"live": True})
    elif path == "/health/ready":
        ready = is_ready()
        await _answer(send, 200 if ready else 503, {"ready": ready})
    else:
        await _answer(send, 404, {"detail": "health routes: /health/live, /health/ready"})


async def _answer(send: Send, status: int, body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(raw)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": raw})
