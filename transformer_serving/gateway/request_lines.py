"""Log lines of requests: of those that the gateway refuses with 500 and above, and of every one of
an endpoint where TRANSFORMER_SERVING_LOG_REQUESTS asks for it.

The latter is written when the answer has left, of a stream its last byte. Endpoint, key and trace
come onto it as onto every line of a request (contract/worker/log_lines.py).

Tested by tests/gateway/test_request_lines.py.
"""

from __future__ import annotations

import logging
import time

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.fault_lines import FIRST_SERVER_FAULT, CodeLines
from transformer_serving.gateway.asgi import Message
from transformer_serving.gateway.exchange import Exchange

log = logging.getLogger("transformer_serving.gateway")


class RefusalLines:
    """A line a second for each code and endpoint, as the preprocess has them of what reached an
    endpoint.
    """

    def __init__(self) -> None:
        self._lines = CodeLines(log)

    def write(self, error: ServingError, request_id: bytes | None, endpoint: str) -> None:
        """`endpoint` is one that exists, or empty; no line of faults that are the caller's."""
        if error.kind.status >= FIRST_SERVER_FAULT:
            name = None if request_id is None else request_id.decode("latin-1")
            self._lines.write(error, endpoint or None, name)


class RequestLine:
    """Of one exchange, whose answer goes through `send`."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._status: int | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        await self._exchange.send(message)

    def write(self) -> None:
        exchange = self._exchange
        log.info(
            "not answered: its caller left" if self._status is None else "answered",
            extra={
                "request_id": exchange.id.decode("latin-1"),
                "status": self._status,
                "ms": round(1000 * (time.monotonic() - exchange.arrived), 3),
            },
        )
