"""uvicorn's HTTP protocol, bounded before a request is whole: in what it holds, and in time; and
deaf to `Upgrade`, which a server may ignore.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes that may come in a row without completing a request's head, or bringing some of its body.
MAX_HEAD_BYTES = 65_536


class BoundedProtocol(HttpToolsProtocol):
    """A connection that brings no whole head, or nothing of its body, within the keep-alive
    time is closed; one whose head is too long is answered with 400.

    uvicorn's own waits for a head without end, and keeps whatever comes of it. Trailers count too.

    httptools takes a request with `Upgrade` to end with its head, whatever its content-length says.
    Java's HttpClient sends `Upgrade: h2c` with every first request, so such a head is parsed a
    second time, without that header, and the body after it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._unfinished = 0
        self._late: asyncio.TimerHandle | None = None
        self._fed: bytes | memoryview = b""
        self._again: tuple[bytes, memoryview] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._unfinished += len(data)
        self._feed(data)
        while self._again is not None and not self.transport.is_closing():
            (head, rest), self._again = self._again, None
            self._feed(head)
            self._feed(rest)
        # Whatever was finished in this data has set it to zero.
        if self._unfinished > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")
        elif self._unfinished and self._late is None:
            self._wait()

    def on_headers_complete(self) -> None:
        if not self._is_fed_again():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._finished()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_fed_again():
            self._finished()
            super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finished()
        super().connection_lost(exc)

    def _feed(self, data: bytes | memoryview) -> None:
        self._fed = data
        super().data_received(data)  # type: ignore[arg-type]
        self._fed = b""

    def _unsupported_upgrade_warning(self) -> None:
        """Called by uvicorn while it handles the parser's stop behind a head with Upgrade."""
        stop = sys.exception()
        if isinstance(stop, httptools.HttpParserUpgrade) and self._is_fed_again():
            self._again = self._head_without_upgrade(), memoryview(self._fed)[stop.args[0] :]

    def _is_fed_again(self) -> bool:
        # The method CONNECT is an upgrade without the header.
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join((*lines, b"", b""))

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
