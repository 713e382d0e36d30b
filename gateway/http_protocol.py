"""uvicorn's HTTP protocol, bounded before a request is whole: in what it holds, and in time."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes that may come in a row without completing a request's head, or bringing some of its body.
MAX_HEAD_BYTES = 65_536


class BoundedProtocol(HttpToolsProtocol):
    """A connection that brings no whole head, or nothing of its body, within the keep-alive
    time is closed; one whose head is too long is answered with 400.

    uvicorn's own waits for a head without end, and keeps whatever comes of it. Trailers count too.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unfinished = 0
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._unfinished += len(data)
        super().data_received(data)
        # Whatever was finished in this data has set it to zero.
        if self._unfinished > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")
        elif self._unfinished and self._late is None:
            self._wait()

    def on_body(self, body: bytes) -> None:
        self._finished()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._finished()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finished()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._late = self.loop.call_later(self.timeout_keep_alive, self._give_up)

    def _finished(self) -> None:
        self._unfinished = 0
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
