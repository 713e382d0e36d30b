"""Triton's answers as they come: in any pieces, cut short, or not HTTP at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from hypothesis import given, strategies as st

from preprocess.triton.connection import Connection, Reply

Result = TypeVar("Result")
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
    b"Inference-Header-Content-Length: 7\r\nContent-Length: 12\r\n\r\n"
    + b'{"a":1}'
    + b"\x00\r\n\r\n"
)


def over_a_socket(work: Callable[[Connection, socket.socket], Awaitable[Result]]) -> Result:
    """`work` with a connection and the far end of its socket."""

    async def run() -> Result:
        near, far = socket.socketpair()
        with far:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(Connection, sock=near)
            try:
                return await asyncio.wait_for(work(connection, far), 60)
            finally:
                connection.close()
                await asyncio.sleep(0)

    return asyncio.run(run())


async def answered(connection: Connection, far: socket.socket, *pieces: bytes) -> Reply:
    """The reply to a call that is answered in these pieces, each in a read of its own."""
    call = asyncio.ensure_future(connection.call(b"request"))
    await asyncio.sleep(0)
    assert far.recv(100) == b"request"
    for piece in pieces:
        far.sendall(piece)
        await asyncio.sleep(0.001)
    return await call


async def answered_and_ended(
    connection: Connection, far: socket.socket, sent: bytes
) -> asyncio.Future[Reply]:
    """A call to which the far end sends this and then nothing more."""
    call = asyncio.ensure_future(connection.call(b"request"))
    await asyncio.sleep(0)
    far.sendall(sent)
    far.shutdown(socket.SHUT_WR)
    return call


@given(cuts=st.sets(st.integers(1, len(_ANSWER) - 1), max_size=8))
def test_in_any_pieces(cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(_ANSWER)]
    pieces = [_ANSWER[start:end] for start, end in zip(edges, edges[1:], strict=False)]

    async def twice(connection: Connection, far: socket.socket) -> tuple[Reply, Reply]:
        first = await answered(connection, far, *pieces)
        return first, await answered(connection, far, *pieces)

    for reply in over_a_socket(twice):
        assert (reply.status, reply.json_size) == (200, 7)
        assert bytes(reply.body) == b'{"a":1}\x00\r\n\r\n'


def test_without_lengths_there_is_no_body() -> None:
    reply = over_a_socket(lambda near, far: answered(near, far, b"HTTP/1.1 404 Not Found\r\n\r\n"))
    assert (reply.status, reply.json_size, bytes(reply.body)) == (404, 0, b"")


@pytest.mark.parametrize(
    "wrong",
    [
        b"HTTP/1.1 two OK\r\n\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\n",
        b"x" * 70_000,
    ],
    ids=("status", "ssh", "length", "more", "two", "endless"),
)
def test_what_is_no_answer_ends_the_connection(wrong: bytes) -> None:
    async def work(connection: Connection, far: socket.socket) -> None:
        with pytest.raises(ValueError, match=r"."):
            await answered(connection, far, wrong)
        assert not connection.usable

    over_a_socket(work)


@given(noise=st.binary(min_size=1, max_size=300))
def test_noise_is_never_taken_for_200(noise: bytes) -> None:
    async def work(connection: Connection, far: socket.socket) -> None:
        call = await answered_and_ended(connection, far, noise)
        with pytest.raises((ValueError, OSError)):
            await call

    over_a_socket(work)


@pytest.mark.parametrize("sent", [b"", _ANSWER[:40], _ANSWER[:-1]], ids=("nothing", "head", "body"))
def test_an_end_before_the_answer_is_whole(sent: bytes) -> None:
    async def work(connection: Connection, far: socket.socket) -> None:
        call = await answered_and_ended(connection, far, sent)
        with pytest.raises(OSError, match="ended"):
            await call
        assert not connection.usable
        with pytest.raises(OSError, match="ended"):
            await connection.call(b"another")

    over_a_socket(work)


def test_bytes_after_an_answer_end_the_connection() -> None:
    async def work(connection: Connection, far: socket.socket) -> None:
        await answered(connection, far, _ANSWER)
        assert connection.usable
        far.sendall(b"HTTP/1.1 200 OK\r\n")
        while connection.usable:
            await asyncio.sleep(0.001)

    over_a_socket(work)
