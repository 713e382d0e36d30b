"""Heads that never end, in time and in size, on uvicorn's own server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn

from gateway.asgi import Receive, Scope, Send, send_json
from gateway.http_protocol import MAX_HEAD_BYTES, BoundedProtocol

HEAD = b"POST / HTTP/1.1\r\nhost: a\r\n"
KEEP_ALIVE_S = 1
LONG_S = 600


async def sizes(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers how many bytes of body came."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message["body"]), message["more_body"]
    await send_json(send, 200, size)


@pytest.fixture
async def port(request: pytest.FixtureRequest) -> AsyncIterator[int]:
    config = uvicorn.Config(
        sizes, port=0, http=BoundedProtocol, lifespan="off", log_level="error",
        timeout_keep_alive=getattr(request, "param", KEEP_ALIVE_S),
    )  # fmt: skip
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Until the server closes, which it must."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    "beginning",
    [b"", b"POST", HEAD, HEAD + b"x-long: aaa", HEAD + b"content-length: 9\r\n\r\n"],
    ids=["nothing", "method", "head", "value", "no body"],
)
async def test_a_head_that_does_not_end_is_given_up(port: int, beginning: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(beginning)
    assert await all_of(reader) == b""
    writer.close()


async def test_one_that_drips_is_given_up(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def drip() -> None:
        writer.write(HEAD + b"x-long: ")
        while True:
            writer.write(b"a")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    assert await all_of(reader) == b""
    dripping.cancel()
    writer.close()


@pytest.mark.parametrize("port", [LONG_S], indirect=True, ids=["no-hurry"])
@pytest.mark.parametrize(
    ("beginning", "piece"),
    [
        (b"", b"a" * 1000),
        (b"POST /", b"a" * 1000),
        (HEAD + b"x-long: ", b"a" * 1000),
        (HEAD, b"x-one-more: a\r\n" * 100),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n", b"x-trailer: a\r\n" * 100),
    ],
    ids=["method", "path", "value", "headers", "trailers"],
)
async def test_a_head_that_is_too_large_is_refused(
    port: int, beginning: bytes, piece: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(beginning)
    sent = 0
    while sent < 3 * MAX_HEAD_BYTES and not reader.at_eof():
        writer.write(piece)
        sent += len(piece)
        await asyncio.sleep(0)
    answer = await all_of(reader)
    # A reset may overtake the answer where more was on its way.
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    writer.close()


async def test_bodies_of_any_size_and_kept_connections_go_on(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for size in (0, 10, 3 * MAX_HEAD_BYTES, 10**6, 1):
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % size + b"a" * size)
        head = await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(str(size))) == str(size).encode()
        assert head.startswith(b"HTTP/1.1 200")
    writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 30_000)
    await asyncio.sleep(2 * KEEP_ALIVE_S)  # a body has its own limit of time
    writer.write(b"0\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.readuntil(b"30000")).startswith(b"HTTP/1.1 200")
    writer.close()
