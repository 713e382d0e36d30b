"""One HTTP request and the way its answer leaves.

Tested by tests/gateway/test_front_door.py.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from transformer_serving.contract.dialects import current_dialect
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.request_context import begin_request
from transformer_serving.contract.worker.trace_context import HEADER
from transformer_serving.gateway.asgi import (
    App,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    adding,
    hears_close,
    path_of,
    send_json,
    without_body,
)
from transformer_serving.gateway.body.incoming import Incoming, header_values
from transformer_serving.gateway.callers import Caller
from transformer_serving.gateway.request_id import HEADER as ID_HEADER, request_id

_TRACE = HEADER.encode()
TIMING = b"server-timing"
_CLOSE = (b"connection", b"close")
_EXPECT = b"expect"
_CUT_OFF = ServingError("malformed_body", "the body ended before it was whole")
_CHALLENGE = (b"www-authenticate", b"Bearer")
_UNAUTHORIZED, _NOT_FOUND = 401, 404
_OF_THE_SENT_BODY = (b"content-encoding", b"content-length", b"transfer-encoding")


def answer_headers(identity: bytes, seconds: float) -> Headers:
    """The id of a request, and how long its answer took."""
    return (ID_HEADER, identity), (TIMING, b"total;dur=%.3f" % (1000 * seconds))


class Exchange(NamedTuple):
    """`headers` by their name, of repeated ones the last; `path` is the one to go by."""

    scope: Scope
    receive: Receive
    send: Send
    headers: dict[bytes, bytes]
    id: bytes
    arrived: float
    path: str

    @classmethod
    def of(cls, scope: Scope, receive: Receive, send: Send) -> Exchange:
        headers = header_values(scope["headers"])
        if scope["method"] == "HEAD":
            send = without_body(send)
        return cls(
            scope, receive, send, headers, request_id(headers), time.monotonic(), path_of(scope)
        )

    @property
    def has_no_body(self) -> bool:
        """Whether HTTP/1 says that no body follows; a later HTTP does not say it in its head."""
        return (
            self.scope.get("http_version", "1.1").startswith("1")
            and b"transfer-encoding" not in self.headers
            and self.headers.get(b"content-length", b"0") == b"0"
        )

    def answer_headers(self) -> Headers:
        """What every answer gets that does not have it of its own."""
        return answer_headers(self.id, time.monotonic() - self.arrived)

    def as_one_of_the_last(self) -> Exchange:
        """Of a worker that leaves, or an old connection: the caller is asked to connect anew.

        A leaving worker would close a kept connection when its drain ends, perhaps under the next
        request.
        """
        if not hears_close(self.scope):
            return self
        return self._replace(send=adding(self.send, lambda: (_CLOSE,)))

    def enter(self, operation: str | None) -> None:
        """Tell, in this request's task, whose it is and in which dialect."""
        trace = self.headers.get(_TRACE)
        begin_request(
            (self.id.decode("latin-1"), None if trace is None else trace.decode("latin-1")),
            None if operation is None else (operation, b""),
        )

    def for_the_host(self, raw: bytes, caller: Caller) -> tuple[Scope, Receive, Send]:
        """The request for the host's app, its body read and inflated already."""
        scope = self.scope
        if b"content-encoding" in self.headers:
            headers = [row for row in scope["headers"] if row[0] not in _OF_THE_SENT_BODY]
            headers.append((b"content-length", str(len(raw)).encode()))
            scope = {**scope, "headers": headers}
        first: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> Message:
            return first.pop() if first else await caller.receive()

        return scope, receive, adding(self.send, self.answer_headers)

    async def asks(self, app: App) -> bool:
        """Let the host's app answer; False where it has nothing at the path, of which its caller is
        not told yet.
        """
        send, found = adding(self.send, self.answer_headers), True

        async def send_what_it_has(message: Message) -> None:
            nonlocal found
            if message["type"] == "http.response.start":
                found = message["status"] != _NOT_FOUND
            if found:
                await send(message)

        await app(self.scope, self.receive, send_what_it_has)
        return found

    async def refuse(self, error: ServingError, incoming: Incoming) -> None:
        """Answer the error; where the body has not come whole, close after letting it run out."""
        headers = [*self.answer_headers(), *([_CLOSE] if incoming.open else [])]
        if error.kind.status == _UNAUTHORIZED:
            headers.append(_CHALLENGE)
        if error.kind.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.kind.retry_after_s))
        # Granian closes the connection with the answer's last byte, and one that is still being
        # sent to would lose the answer to a reset. Who waits for "100 Continue" sends nothing.
        comes = incoming.open and (incoming.wanted or _EXPECT not in self.headers)
        await self._send_error(error, headers, incoming.drop if comes else None)

    async def tell_cut_off(self) -> None:
        """Who has left does not read it; who sent chunks that are none does."""
        await self._send_error(_CUT_OFF, [*self.answer_headers(), _CLOSE])

    async def _send_error(
        self, error: ServingError, headers: list[tuple[bytes, bytes]],
        before_the_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        dialect = current_dialect()
        status, body = dialect.status(error), dialect.error_body(error)
        await send_json(self.send, status, body, headers, before_the_end=before_the_end)
