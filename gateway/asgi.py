"""ASGI's types, and answers in JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import orjson

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]


async def send_json(
    send: Send, status: int, body: Any, headers: Headers = (), *, end: bool = True
) -> None:
    """Answer in JSON. With `end` False the caller still has to send the last, empty piece."""
    raw = orjson.dumps(body)
    own = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(raw)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": own})
    await send({"type": "http.response.body", "body": raw, "more_body": not end})


def adding(send: Send, header: tuple[bytes, bytes]) -> Send:
    """`send` that puts one more header on the answer, unless the answer has it already."""
    name = header[0]

    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = list(message.get("headers", ()))
            if all(given.lower() != name for given, _ in headers):
                headers.append(header)
            message = {**message, "headers": headers}
        await send(message)

    return send_with_header
