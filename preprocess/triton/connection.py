"""One kept HTTP connection to Triton: one call at a time, its answer read as it arrives.

A protocol of its own, because on asyncio's streams every call waits twice more (for the head and
for the body) and drains a buffer: docs/decisions/triton-client.md has what that costs.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, cast

_MAX_HEAD = 65_536
_END = b"\r\n\r\n"
# Of a status line, `HTTP/1.1 200 OK`.
_STATUS = slice(9, 12)


class Reply(NamedTuple):
    """Triton's answer; the first `json_size` bytes of the body are JSON, tensors follow them."""

    status: int
    json_size: int
    body: memoryview


class _Head(NamedTuple):
    """What the head of an answer says; the body lies at `start` to `end` of what was received."""

    status: int
    json_size: int
    start: int
    end: int


class Connection(asyncio.Protocol):
    """`fresh` until its first call has been answered. Used from one event loop."""

    def __init__(self) -> None:
        self.fresh = True
        self._transport = cast("asyncio.Transport", None)  # connection_made comes first
        self._answer: asyncio.Future[Reply] | None = None
        self._received = bytearray()
        self._head: _Head | None = None

    @property
    def usable(self) -> bool:
        return not self._transport.is_closing()

    async def call(self, request: bytes) -> Reply:
        """Raises OSError when the connection ends first, ValueError for what is not HTTP.

        After either, and when the caller was cancelled, the connection must be closed: what is
        still to come must meet no other call.
        """
        # An ended connection's transport takes the bytes without a word.
        if not self.usable:
            raise ConnectionResetError("the connection has ended")
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        reply = await self._answer
        self.fresh = False
        return reply

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionResetError("the connection has ended"))

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None or answer.done():
            self._end(ValueError("bytes that nobody asked for"))
            return
        # An answer mostly comes in one piece, and is then taken as it is.
        whole: bytes | bytearray = data
        if self._received:
            self._received += data
            whole = self._received
        try:
            head = self._head = self._head or _read_head(whole)
            if head is not None and len(whole) > head.end:
                raise ValueError("more bytes than announced")
        except ValueError as error:
            self._end(error)
            return
        if head is None or len(whole) < head.end:
            self._received = bytearray(data) if whole is data else self._received
            return
        self._received, self._head = bytearray(), None
        body = memoryview(whole)[head.start : head.end]
        answer.set_result(Reply(head.status, head.json_size, body))

    def _end(self, error: Exception) -> None:
        self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _read_head(received: bytes | bytearray) -> _Head | None:
    """The head, or None while it is not whole. Raises ValueError for what is not one."""
    end = received.find(_END, 0, _MAX_HEAD)
    if end < 0:
        if len(received) >= _MAX_HEAD:
            raise ValueError("a head without an end")
        return None
    lines = received[: end + len(_END)].lower()
    status = lines[_STATUS]
    if not (lines.startswith(b"http/1.") and status.isdigit()):
        raise ValueError("no HTTP")
    size = _number(lines, b"\r\ncontent-length:", 0)
    start = end + len(_END)
    return _Head(
        status=int(status),
        json_size=min(size, _number(lines, b"\r\ninference-header-content-length:", size)),
        start=start,
        end=start + size,
    )


def _number(lines: bytes | bytearray, name: bytes, absent: int) -> int:
    at = lines.find(name)
    if at < 0:
        return absent
    at += len(name)
    number = lines[at : lines.index(b"\r", at)].strip()
    if not number.isdigit():
        raise ValueError("a length that is no number")
    return int(number)
