"""Answers under a caller who does not read them, or slowly: Granian before an app."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from preprocess.generation import answer
from preprocess.generation.answer import StreamAnswer
from transformer_serving.contract.worker.request_context import current_caller
from transformer_serving.gateway.asgi import App, Message, Receive, Scope, Send
from transformer_serving.gateway.server.http import HttpServer
from transformer_serving.gateway.server.listener import UNREAD_SECONDS, listen

REQUEST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
# Of a body in chunks, behind the last of them.
END = b"0\r\n\r\n"
# More than the buffers of a connection hold together.
EVENT = b"data: " + b"x" * 1_000_000 + b"\n\n"
WHOLE = EVENT * 20
# For a caller to take some of it, and more than that.
UNREAD_S, LONGER_S = 2.0, 4.0


class Stream:
    """An answer without an end, which its `deadline` or the worker's leaving ends."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.sent = 0
        self.caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        current_caller.set(self.caller)
        told = StreamAnswer(
            self.events(), {}, lambda *reason: None, self.deadline,
            tell=lambda error: f"event: {error.kind.code}\n\n".encode(),
        )  # fmt: skip
        try:
            await told(scope, self.receive, send)
        finally:
            self.over.set()

    async def events(self) -> AsyncIterator[bytes]:
        for self.sent in itertools.count(1):
            yield EVENT

    async def receive(self) -> Message:
        await asyncio.wait({self.caller})
        return {"type": "http.disconnect"}

    async def stands_still(self) -> None:
        """Until the buffers are full."""
        before = 0
        while self.sent != before or not before:
            before = self.sent
            await asyncio.sleep(0.3)


class Pieces:
    """An answer of so many messages, with a pause before the last of them."""

    def __init__(self, pieces: int, pause_s: float = 0.0) -> None:
        self._pieces = pieces
        self._pause_s = pause_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(self._pieces - 1):
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await asyncio.sleep(self._pause_s)
        await send({"type": "http.response.body", "body": EVENT})


async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    """An answer that Granian gets in one."""
    length = b"%d" % len(WHOLE)
    headers = [(b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": WHOLE})


@asynccontextmanager
async def asked(
    app: App, unread_seconds: float = UNREAD_SECONDS
) -> AsyncIterator[tuple[HttpServer, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A caller who has asked, and has read nothing yet but what its own buffer takes."""
    listener = listen("127.0.0.1", 0, 10, unread_seconds=unread_seconds)
    port: int = listener.getsockname()[1]
    server = HttpServer(app, listener, backlog=10, connections=10)
    server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(REQUEST)
    try:
        yield server, reader, writer
    finally:
        writer.close()
        server.stop()
        async with asyncio.timeout(60):
            await server.ended.wait()


@asynccontextmanager
async def connected(stream: Stream) -> AsyncIterator[asyncio.StreamReader]:
    async with asked(stream) as (_, reader, _):
        await stream.stands_still()
        yield reader


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Until the body's end, or that of the connection."""
    raw = b""
    async with asyncio.timeout(60):
        while not raw.endswith(END) and (more := await reader.read(1 << 20)):
            raw += more
    return raw


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "_LAST_WORDS_S", 0.1)


async def test_what_passes_its_deadline_unread_is_cut() -> None:
    stream = Stream(time.monotonic())
    async with connected(stream) as reader:
        async with asyncio.timeout(60):
            await stream.over.wait()
        raw = await all_of(reader)
    assert raw.startswith(b"HTTP/1.1 200")
    # With an event that says so, where there was room for it all the same, else without an end.
    assert b"event: deadline" in raw or not raw.endswith(END)


async def test_what_its_worker_leaves_unread_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "_LEAVING_S", 0.1)
    stream = Stream(time.monotonic() + 3600)
    async with connected(stream) as reader:
        stream.caller.set_exception(ConnectionAbortedError())
        async with asyncio.timeout(60):
            await stream.over.wait()
        raw = await all_of(reader)
    assert raw.startswith(b"HTTP/1.1 200")
    assert b"event: unavailable" in raw or not raw.endswith(END)


async def test_who_begins_to_read_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "_LEAVING_S", 600.0)
    stream = Stream(time.monotonic() + 3600)
    async with connected(stream) as reader:
        stream.caller.set_exception(ConnectionAbortedError())
        raw = await all_of(reader)
    assert raw.endswith(END)
    assert raw.count(b"event: unavailable") == 1


async def test_what_is_not_read_at_all_is_let_go_of() -> None:
    """Granian holds it, and the worker's stop, until then; nobody else knows of it any more."""
    async with asked(whole, UNREAD_S) as (server, reader, _):
        # The answer is on its way, and a whole one has ended for the app.
        await reader.readuntil(b"\r\n\r\n")
        server.stop()
        async with asyncio.timeout(30):
            await server.ended.wait()


@pytest.mark.parametrize("app", [whole, Pieces(20)])
async def test_who_reads_slowly_gets_all(app: App) -> None:
    began = time.monotonic()
    async with asked(app, UNREAD_S) as (_, reader, _), asyncio.timeout(60):
        read = len(await reader.readuntil(b"\r\n\r\n"))
        while read < len(WHOLE):
            await asyncio.sleep(0.06)
            more = await reader.read(len(WHOLE) // 50)
            assert more
            read += len(more)
    assert time.monotonic() - began > UNREAD_S


async def test_nobody_is_hurried_who_has_all_that_was_sent() -> None:
    """A stream in a pause, and a kept connection between two requests."""
    async with asked(Pieces(2, LONGER_S), UNREAD_S) as (_, reader, writer):
        assert (await all_of(reader)).endswith(END)
        await asyncio.sleep(LONGER_S)
        writer.write(REQUEST)
        assert (await all_of(reader)).endswith(END)
