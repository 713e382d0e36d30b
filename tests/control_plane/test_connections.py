"""Callers that ask for nothing keep no others out, and those that kept a connection keep it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import uvicorn

from tests.control_plane.conftest import ServerProcess
from transformer_serving.control_plane.connections import Connection

FILES = 128
HALF = b"GET /health HT"
WHOLE = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"
UNREAD = b"POST /v2.23/tasks.get_all HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n"


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
        yield wire


def ended(wire: socket.socket) -> bool:
    """Whether the server ends it; waits a minute for that, and takes what it still sends."""
    try:
        while wire.recv(65_536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("sent", [b"", HALF, WHOLE], ids=["nothing", "half a head", "whole ones"])
def test_connections_without_end_keep_nobody_out(own_server: ServerProcess, sent: bytes) -> None:
    own_server.files = FILES
    own_server.start()
    session = own_server.session()
    with contextlib.ExitStack() as held:
        wires = [held.enter_context(connected(own_server.port)) for _ in range(2 * FILES)]
        for wire in wires:
            with contextlib.suppress(ConnectionError):
                wire.sendall(sent)
        for _ in range(3):
            assert requests.get(f"{own_server.url}/health", timeout=20).status_code == 200
        # Whose kept connection may have been the one that had waited longest.
        assert own_server.call(session, "tasks.get_all")["tasks"] == []


@pytest.mark.parametrize(
    ("before", "sent"),
    [(0, b""), (0, HALF), (1, HALF), (0, WHOLE + HALF), (1, b"\r\n")],
    ids=["nothing", "a first", "a later one", "one behind a whole one", "no part of one"],
)
def test_a_head_has_its_time_and_a_kept_connection_more(
    server: ServerProcess, before: int, sent: bytes
) -> None:
    kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    kept.auto_open = 0
    kept.connect()
    kept.request("GET", "/health")
    kept.getresponse().read()
    with connected(server.port) as wire:
        for _ in range(before):
            wire.sendall(WHOLE)
            assert b" 200 " in wire.recv(65_536)
        wire.sendall(sent)
        assert ended(wire)
    kept.request("GET", "/health")
    assert kept.getresponse().status == 200
    kept.close()


def test_a_body_that_nobody_reads_keeps_no_connection(server: ServerProcess) -> None:
    with connected(server.port) as wire:
        wire.sendall(UNREAD)
        assert b" 401 " in wire.recv(65_536)
        wire.settimeout(1)
        for _ in range(60):
            try:
                wire.sendall(b"a")
                if not wire.recv(65_536):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    pytest.fail("it is kept")


def test_a_body_that_came_to_its_end_keeps_the_connection(server: ServerProcess) -> None:
    """As of a client that sends it in a packet of its own, after the answer."""
    with connected(server.port) as wire:
        kept = http.client.HTTPConnection("127.0.0.1", server.port)
        kept.sock = wire
        wire.sendall(UNREAD)
        refused = http.client.HTTPResponse(wire)
        refused.begin()
        assert refused.status == 401
        refused.read()
        wire.sendall(bytes(1000))
        assert requests.get(f"{server.url}/health", timeout=20).status_code == 200
        # Its time begins after that body, of which nothing is left to wait for.
        with connected(server.port) as other:
            assert ended(other)
        kept.request("GET", "/health")
        assert kept.getresponse().status == 200


def test_what_is_kept_after_an_unread_body_ends_as_others_do() -> None:
    with refusing(keep_alive=1) as port, connected(port) as wire:
        wire.sendall(UNREAD)
        assert b" 401 " in wire.recv(65_536)
        wire.sendall(bytes(1000))
        assert ended(wire)


@contextlib.contextmanager
def refusing(keep_alive: int) -> Iterator[int]:
    """The port of a server that reads no body, and keeps what asks nothing for so many seconds."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body"})

    config = uvicorn.Config(
        app, lifespan="off", log_config=None, http=Connection, timeout_keep_alive=keep_alive
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(60)
