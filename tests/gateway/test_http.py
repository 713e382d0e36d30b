"""Heads that never end, in time and in size, bodies and upgrades: Granian before a plain app."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from transformer_serving.gateway.asgi import Receive, Scope, Send, send_json
from transformer_serving.gateway.server.http import MAX_HEAD_BYTES, HttpServer
from transformer_serving.gateway.server.listener import listen

HEAD = b"POST / HTTP/1.1\r\nhost: a\r\n"
KEEP_ALIVE_S = 1
LONG_S = 600


async def sizes(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers how many bytes of body came; /unread without reading them."""
    if scope["path"] == "/unread":
        await send_json(send, 200, "unread")
        return
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            await send_json(send, 400, "cut off")
            return
        size, more = size + len(message["body"]), message["more_body"]
    await send_json(send, 200, size)


class Running(NamedTuple):
    server: HttpServer
    port: int


@asynccontextmanager
async def served(head_seconds: float, connections: int = 100) -> AsyncIterator[Running]:
    listener = listen("127.0.0.1", 0, 100)
    port: int = listener.getsockname()[1]
    server = HttpServer(
        sizes, listener, backlog=100, connections=connections, head_seconds=head_seconds
    )
    server.start()
    yield Running(server, port)
    server.stop()
    async with asyncio.timeout(60):
        await server.ended.wait()


@pytest.fixture
async def running(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    async with served(getattr(request, "param", KEEP_ALIVE_S)) as one:
        yield one


@pytest.fixture
def port(running: Running) -> int:
    return running.port


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Until the server closes, which it must."""
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    "beginning",
    [b"", b"POST", HEAD, HEAD + b"x-long: aaa"],
    ids=["nothing", "method", "head", "value"],
)
async def test_a_head_that_does_not_end_is_given_up(port: int, beginning: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(beginning)
    answer = await all_of(reader)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 408")
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


@pytest.mark.parametrize("running", [LONG_S], indirect=True, ids=["no-hurry"])
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
    # uvloop raises where something is written to what a reset has closed.
    while sent < 3 * MAX_HEAD_BYTES and not (reader.at_eof() or writer.transport.is_closing()):
        writer.write(piece)
        sent += len(piece)
        await asyncio.sleep(0)
    answer = await all_of(reader)
    # A reset may overtake the answer where more was on its way.
    assert answer == b"" or answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
    writer.close()


@pytest.mark.parametrize("running", [LONG_S], indirect=True, ids=["no-hurry"])
async def test_bodies_of_any_size_and_kept_connections_go_on(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for size in (0, 10, 3 * MAX_HEAD_BYTES, 10**6, 1):
        writer.write(HEAD + b"content-length: %d\r\n\r\n" % size + b"a" * size)
        head = await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(len(str(size))) == str(size).encode()
        assert head.startswith(b"HTTP/1.1 200")
    writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 30_000)
    writer.write(b"0\r\n\r\n")
    async with asyncio.timeout(60):
        assert (await reader.readuntil(b"30000")).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_body_has_a_limit_of_time_of_its_own(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n")
    await asyncio.sleep(2 * KEEP_ALIVE_S)
    writer.write(b"0\r\n\r\n")
    assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b"1")
    writer.close()


@pytest.mark.parametrize("head", [b"content-length: 4\r\n", b"transfer-encoding: chunked\r\n"])
@pytest.mark.parametrize("running", [LONG_S], indirect=True, ids=["no-hurry"])
async def test_a_body_may_come_long_after_its_head(port: int, head: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    pieces = [b"ab", b"cd"] if b"length" in head else [b"4\r\nab", b"cd\r\n", b"0\r\n\r\n"]
    for pause in (0.0, 1.0, 0.0):
        writer.write(HEAD + head + b"\r\n")
        for piece in pieces:
            await asyncio.sleep(pause)
            writer.write(piece)
        assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b"4")
    writer.close()


@pytest.mark.parametrize("declared", [b"1", b"16384", b"16385", b"99999999"])
@pytest.mark.parametrize("running", [LONG_S], indirect=True, ids=["no-hurry"])
async def test_the_app_is_asked_before_a_body_that_does_not_come(
    port: int, declared: bytes
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD.replace(b"/ ", b"/unread ") + b"content-length: " + declared + b"\r\n\r\n")
    assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b'"unread"')
    writer.close()


@pytest.mark.parametrize("running", [LONG_S], indirect=True, ids=["no-hurry"])
async def test_a_body_is_only_called_for_where_the_app_reads_it(port: int) -> None:
    head = HEAD + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head)
    async with asyncio.timeout(60):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"ab")
    assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b"2")
    writer.write(head.replace(b"/ ", b"/unread "))
    assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b'"unread"')
    writer.close()


@pytest.mark.parametrize("running", [LONG_S], indirect=True, ids=["no-hurry"])
async def test_callers_that_leave_before_their_body_hold_nobody_up(port: int) -> None:
    for _ in range(50):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD + b"content-length: 5\r\n\r\nab")
        writer.close()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"content-length: 3\r\n\r\nabc")
    assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b"3")
    writer.close()


JAVA = (
    b"POST /x HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: %d\r\n"
    b"Host: 127.0.0.1:8080\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    b"Upgrade: h2c\r\nUser-Agent: Java-http-client/17.0.15\r\n\r\n"
)
CHUNKED = HEAD + b"connection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: chunked\r\n\r\n"


async def answer_of(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return head.split(b"\r\n")[0], await reader.readexactly(length)


@pytest.mark.parametrize(
    "pieces",
    [
        [JAVA % 9 + b"123456789"],
        [JAVA % 9, b"123456789"],
        [bytes([one]) for one in JAVA % 9 + b"123456789"],
        [JAVA % 9 + b"1234", b"56789"],
        [CHUNKED + b"4\r\n1234\r\n5\r\n56789\r\n0\r\n\r\n"],
        [CHUNKED, b"9\r\n123456789\r\n", b"0\r\n\r\n"],
    ],
    ids=["at once", "body apart", "by bytes", "cut", "chunked", "chunked apart"],
)
@pytest.mark.parametrize("running", [LONG_S], indirect=True, ids=["no-hurry"])
async def test_an_upgrade_is_ignored_and_the_connection_goes_on(
    port: int, pieces: list[bytes]
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b"9")
    writer.write(HEAD + b"content-length: 3\r\n\r\nabc")
    assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b"3")
    writer.close()


@pytest.mark.parametrize("running", [LONG_S], indirect=True, ids=["no-hurry"])
async def test_many_upgrades_at_once(port: int) -> None:
    """More than a function could call itself, and what follows each is not copied for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write((JAVA % 2 + b"ab") * 1500)
    for _ in range(1500):
        assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b"2")
    writer.close()


@pytest.mark.long
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on this machine")
async def test_the_jdks_own_client(port: int) -> None:
    process = await asyncio.create_subprocess_exec(
        "java", str(Path(__file__).parent / "JavaClient.java"), f"http://127.0.0.1:{port}/x",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    assert out.decode().split("\n") == ["200 22", "200 100012", "200 22", ""]


@pytest.mark.parametrize("running", [LONG_S], indirect=True, ids=["no-hurry"])
async def test_one_that_takes_no_more_serves_those_that_it_has(running: Running) -> None:
    """Here nobody else has the listener: without it the port is closed."""
    server, port = running
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    # So that it has been taken.
    writer.write(HEAD + b"content-length: 1\r\n\r\na")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    server.take_no_more()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD + b"content-length: 1\r\n\r\na")
    async with asyncio.timeout(60):
        assert b"HTTP/1.1 200" in await reader.readuntil(b"\r\n\r\n1")
    writer.close()


async def test_beyond_its_connections_others_wait_at_no_cost() -> None:
    """Granian would try to accept without a pause where there are no more files."""
    async with served(LONG_S, connections=2) as (_, port):
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in kept[:2]:
            writer.write(HEAD + b"content-length: 1\r\n\r\na")
            assert await answer_of(reader) == (b"HTTP/1.1 200 OK", b"1")
        waits, writer = kept[2]
        writer.write(HEAD + b"content-length: 2\r\n\r\nab")
        spent = time.process_time()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waits.readexactly(1), 1)
        assert time.process_time() - spent < 0.5
        kept[0][1].close()
        assert await answer_of(waits) == (b"HTTP/1.1 200 OK", b"2")
        for _, writer in kept:
            writer.close()
