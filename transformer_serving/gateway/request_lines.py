"""A log line for every request of an endpoint, where TRANSFORMER_SERVING_LOG_REQUESTS asks for it.

Written when the answer has left, of a stream its last byte. Endpoint, key and trace come onto it as
onto every line of a request (contract/worker/log_lines.py).
"""

from __future__ import annotations

import logging
import time

from transformer_serving.gateway.asgi import Message
from transformer_serving.gateway.exchange import Exchange

log = logging.getLogger("transformer_serving.gateway")


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
