"""ASGI's types, and how answers are sent.

Tested by tests/gateway/test_front_door.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson
from starlette.responses import Response

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


def path_of(scope: Scope) -> str:
    """Below the root path, which uvicorn's --root-path puts before every path; where it ends is as
    the host's own routes have it (starlette's get_route_path).
    """
    path: str = scope["path"]
    below = path.removeprefix(scope.get("root_path") or "")
    return below if not below or below.startswith("/") else path


def hears_close(scope: Scope) -> bool:
    """Whether an answer can ask the caller to connect anew, by `connection: close`: in HTTP/1.1
    alone. Granian keeps connections of HTTP/1.0 that ask for it, and says so beside any `close`.
    """
    version: str = scope.get("http_version", "1.1")
    return version == "1.1"


async def send_json(
    send: Send, status: int, body: Any, headers: Headers = (), *,
    before_the_end: Callable[[], Awaitable[None]] | None = None,
) -> None:  # fmt: skip
    """Answer in JSON; the last byte is sent when `before_the_end` has returned."""
    raw = orjson.dumps(body)
    own = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(raw)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": own})
    if before_the_end is not None:
        await send({"type": "http.response.body", "body": raw[:-1], "more_body": True})
        await before_the_end()
        raw = raw[-1:]
    await send({"type": "http.response.body", "body": raw, "more_body": False})


def adding(send: Send, more: Callable[[], Headers]) -> Send:
    """`send` that puts more headers on the answer, except those that the answer has already."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = with_headers(message.get("headers", ()), more())
            message = {**message, "headers": headers}
        await send(message)

    return send_with_headers


def with_headers(headers: Headers, more: Headers) -> list[tuple[bytes, bytes]]:
    """The headers, and those of `more` that they do not have yet."""
    every = list(headers)
    names = {name.lower() for name, _ in every}
    every += [header for header in more if header[0] not in names]
    return every


def without_body(send: Send) -> Send:
    """`send` of an answer to HEAD: its status and headers alone."""

    async def send_the_head(message: Message) -> None:
        await send({**message, "body": b""} if "body" in message else message)

    return send_the_head


def is_stream(response: Response) -> bool:
    """Whether it is one of ours that goes on for as long as its caller is there."""
    return getattr(response, "is_stream", False) is True


async def send_response(
    response: Response,
    scope: Scope,
    receive: Receive,
    send: Send,
    more: Callable[[], Headers],
) -> None:
    """Send a Response with more headers; one that is already whole, in two messages."""
    if type(response).__call__ is not Response.__call__:
        await response(scope, receive, adding(send, more))
        return
    headers = with_headers(response.raw_headers, more())
    status = response.status_code
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
    if response.background is not None:
        await response.background()
