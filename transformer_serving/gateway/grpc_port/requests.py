"""A call of gRPC as a request of the app: what HTTP asks, refuses and measures holds for it too.

Tested by tests/gateway/test_grpc.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

from transformer_serving.contract.body_memory import Share
from transformer_serving.contract.worker.fault_lines import Faults
from transformer_serving.contract.worker.log_lines import trace_of
from transformer_serving.contract.worker.request_context import current_request_id
from transformer_serving.gateway.asgi import App, Message, Scope

log = logging.getLogger("transformer_serving.gateway")
# Of the caller's metadata, what the app knows as headers.
_PASSED_ON = frozenset({"authorization", "x-api-key", "x-request-id", "traceparent", "tracestate"})
_FAULT = 500
_faults = Faults(log)
Headers = list[tuple[bytes, bytes]]


class AppAnswer(NamedTuple):
    """`headers` by their lower-case name."""

    status: int
    headers: dict[str, str]
    body: bytes


class AppRequest:
    """One request to the app, which sees a caller that leaves when the call is cancelled.

    `share` counts the body until the app takes it, which counts it itself.
    """

    def __init__(
        self, method: str, path: str, headers: Headers, share: Share, body: bytes = b""
    ) -> None:
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "client": None,
            "server": None,
            "headers": [*headers, (b"content-length", b"%d" % len(body))],
        }
        self._body: bytes | None = body
        self._share = share
        self._left = asyncio.Event()
        self._answer = AppAnswer(_FAULT, {}, b"")

    async def answer(self, app: App, running: set[asyncio.Task[None]]) -> AppAnswer:
        """What the app answers. Cancelled, the request leaves in its own way, kept in `running`."""
        task = asyncio.get_running_loop().create_task(self._ask(app))
        running.add(task)
        task.add_done_callback(running.discard)
        try:
            await asyncio.shield(task)
        finally:
            self._left.set()
        return self._answer

    async def _ask(self, app: App) -> None:
        try:
            await app(self._scope, self._receive, self._send)
        except Exception as error:
            fault = _faults.note(error)
            if fault.is_told:
                log.error(
                    "a call of gRPC failed: %s", trace_of(error),
                    extra={"request_id": current_request_id(), "count": fault.count},
                )  # fmt: skip
            self._answer = AppAnswer(_FAULT, {}, b"")

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            self._share.give_back(self._share.held)
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        answer = self._answer
        if message["type"] == "http.response.start":
            headers = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in message.get("headers", ())
            }
            self._answer = AppAnswer(message["status"], headers, b"")
        elif message["type"] == "http.response.body":
            self._answer = answer._replace(body=answer.body + message.get("body", b""))


def headers_of(metadata: Iterable[tuple[str, str | bytes]]) -> Headers:
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1", "replace"))
        for name, value in metadata
        if name in _PASSED_ON
    ]
