"""Callers that keep their connections meet the pods that come after these."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from starlette.responses import Response
from tritonclient.grpc import service_pb2 as messages, service_pb2_grpc

from tests.gateway.kept_connections import KeptConnections
from tests.gateway.played_host import Ours, Processor, host_of
from tests.gateway.test_grpc_memory import TOTAL, Held, port_of, refused
from transformer_serving.gateway import connections as module
from transformer_serving.gateway.connections import HEAD_SECONDS, KEPT_SECONDS, Connections, _caller
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.server.http import HttpServer
from transformer_serving.gateway.server.listener import listen
from transformer_serving.gateway.settings import read_settings


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def of(port: object, host: str = "10.0.0.1") -> dict[str, Any]:
    return {"client": (host, port)}


def pass_asking(clock: Clock, connections: Connections, seconds: float, *ports: object) -> None:
    """Each asks once a minute, too soon to be told that it is old, and then the time is over."""
    end = clock.now + seconds
    while clock.now + 60 < end:
        clock.now += 60
        for port in ports:
            assert not connections.ends_with(of(port))
    clock.now = end


def test_an_answer_is_the_last_of_a_connection_that_has_had_its_time() -> None:
    clock = Clock()
    connections = Connections(clock=clock)
    assert not connections.ends_with(of("1"))
    pass_asking(clock, connections, 0.9 * KEPT_SECONDS - 1, "1")
    assert not connections.is_old(of("1"))
    assert not connections.ends_with(of("1"))
    # One that was made later is younger.
    assert not connections.ends_with(of("2"))
    clock.now += 0.2 * KEPT_SECONDS + 2
    assert connections.is_old(of("1"))
    assert not connections.is_old(of("2"))
    assert not connections.is_old(of("3"))
    assert connections.ends_with(of("1"))
    # What comes from that port then is another connection.
    assert not connections.ends_with(of("1"))
    assert not connections.ends_with(of("2"))


def test_connections_that_were_made_together_end_apart() -> None:
    clock = Clock()
    connections = Connections(clock=clock)
    for port in range(1, 1001):
        connections.ends_with(of(port))
    pass_asking(clock, connections, KEPT_SECONDS, *range(1, 1001))
    old = sum(connections.is_old(of(port)) for port in range(1, 1001))
    assert 0 < old < 1000


@pytest.mark.parametrize("client", [None, ("", "0"), ("10.0.0.1", 0)])
def test_a_caller_without_a_port_is_nobody(client: Any) -> None:
    """On a socket of the machine's own, and where uvicorn reads it from a proxy's header."""
    connections = Connections(0)
    for _ in range(2):
        assert not connections.ends_with({"client": client})
        assert not connections.is_old({"client": client})


def test_who_asks_in_http_1_0_is_nobody() -> None:
    connections = Connections(0)
    for version in ("1", "1.0"):
        for _ in range(2):
            assert not connections.ends_with({**of(1), "http_version": version})
            assert not connections.is_old({**of(1), "http_version": version})


def test_connections_that_have_gone_are_forgotten() -> None:
    """Granian closes one that brings nothing for so long: the next with its port is another."""
    clock = Clock()
    connections = Connections(clock=clock)
    connections.ends_with(of(1))
    pass_asking(clock, connections, 1.2 * KEPT_SECONDS - HEAD_SECONDS, 1)
    assert not connections.ends_with(of(1))
    assert not connections.ends_with(of(2))
    clock.now += HEAD_SECONDS
    assert not connections.is_old(of(1))
    assert not connections.ends_with(of(1))
    assert [*connections._kept] == [_caller(of(1))]


def test_of_too_many_who_asked_longest_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 10)
    clock = Clock()
    connections = Connections(clock=clock)
    for port in range(2, 100):
        for asking in (1, port):
            assert not connections.ends_with(of(asking))
    assert [*connections._kept] == [_caller(of(port)) for port in (*range(90, 99), 1, 99)]


def test_kept_connections_end_beside_many_that_are_made_for_each_request() -> None:
    clock = Clock()
    connections = Connections(clock=clock)
    ended = 0
    for second in range(int(1.2 * KEPT_SECONDS)):
        clock.now += 1
        ended += sum(connections.ends_with(of(port, "kept")) for port in range(1, 21))
        for port in range(1, 401):
            assert not connections.ends_with(of(port, f"made in second {second}"))
    assert ended == 20


class Balancer:
    """Chooses a pod for each connection, in turns, and then looks at packets alone."""

    def __init__(self, *pods: int) -> None:
        self.pods = list(pods)
        self.chosen: list[int] = []
        self.port = 0

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pod = self.pods[len(self.chosen) % len(self.pods)]
        self.chosen.append(pod)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", pod)
        await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while packet := await reader.read(2**16):
            writer.write(packet)
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def before(*pods: int) -> AsyncIterator[Balancer]:
    balancer = Balancer(*pods)
    server = await asyncio.start_server(balancer.join, "127.0.0.1", 0)
    balancer.port = server.sockets[0].getsockname()[1]
    try:
        yield balancer
    finally:
        server.close()


class Pod:
    """The gateway before a played host, in this process."""

    def __init__(self, kept_seconds: float) -> None:
        self.processor = Processor({"ours": Response(b"{}")})
        self.processor.changed()
        self.processor.built("ours", Ours())
        self.door = FrontDoor(host_of(self.processor), read_settings({}), kept_seconds=kept_seconds)
        listener = listen("127.0.0.1", 0, 100)
        self.port: int = listener.getsockname()[1]
        self.server = HttpServer(self.door, listener, backlog=100, connections=100)

    async def __aenter__(self) -> Pod:
        self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.stop()
        await self.server.ended.wait()


async def test_a_new_pod_gets_requests_of_callers_that_keep_their_connections() -> None:
    async with (
        asyncio.timeout(60), Pod(0.05) as old, Pod(KEPT_SECONDS) as new,
        before(old.port) as balancer,
    ):  # fmt: skip
        caller = KeptConnections(balancer.port)
        try:
            assert (await caller.post("ours", {}))[0] == 200
            balancer.pods.append(new.port)
            while not new.processor.asked:
                assert (await caller.post("ours", {}))[0] == 200
            # The new one's has its time: nobody is asked to connect anew at each request.
            kept = len(balancer.chosen)
            for _ in range(10):
                assert (await caller.post("ours", {}))[0] == 200
            assert len(balancer.chosen) == kept
        finally:
            await caller.close()


async def connection_rows(pod: Pod, version: bytes, answers: int) -> list[bytes]:
    """Of so many answers on one connection that asks to be kept; asserts that each is one."""
    rows = []
    reader, writer = await asyncio.open_connection("127.0.0.1", pod.port)
    for _ in range(answers):
        writer.write(
            b"POST /serve/ours HTTP/%s\r\nhost: a\r\nconnection: keep-alive\r\n"
            b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}" % version
        )
        head = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        assert head[0].split(b" ")[1] == b"200"
        assert await reader.readexactly(2) == b"{}"
        rows += [row for row in head if row.startswith(b"connection:")]
    writer.close()
    return rows


@pytest.mark.parametrize("leaving", [False, True], ids=["old", "leaving"])
async def test_who_keeps_connections_in_http_1_0_is_told_one_thing(*, leaving: bool) -> None:
    """`ab -k`: hyper says that the connection is kept, whatever else an answer says."""
    async with asyncio.timeout(60), Pod(0) as pod:
        if leaving:
            pod.door.make_way()
        assert await connection_rows(pod, b"1.0", 3) == 3 * [b"connection: keep-alive"]
        answers = 1 if leaving else 2
        assert await connection_rows(pod, b"1.1", answers) == [b"connection: close"]


class Named(Held):
    """Answers at once, but what is asked of the model "held"."""

    def __init__(self, total: int) -> None:
        super().__init__(total)
        self.holds = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if "held" in scope["path"]:
            self.holds.set()
            await super().__call__(scope, receive, send)
            return
        self.entered += 1
        await receive()
        await send({"type": "http.response.start", "status": 400, "headers": []})
        body = b'{"code": "invalid_field", "error": "played"}'
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def grpc_pod(kept_seconds: float) -> AsyncIterator[tuple[Named, int]]:
    app = Named(TOTAL)
    async with port_of(app, read_settings({}), kept_seconds=kept_seconds) as port:
        yield app, port


async def test_a_new_pod_gets_calls_of_grpc_and_those_that_run_are_answered() -> None:
    async with (
        asyncio.timeout(60), grpc_pod(0.1) as (old, first), grpc_pod(KEPT_SECONDS) as (new, second),
        before(first) as balancer,
        grpc.aio.insecure_channel(
            f"127.0.0.1:{balancer.port}", options=[("grpc.use_local_subchannel_pool", 1)]
        ) as channel,
    ):  # fmt: skip
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        async def ask(model: str) -> str | None:
            call = stub.ModelInfer(messages.ModelInferRequest(model_name=model))
            details: str | None = (await refused(call)).details()
            return details

        held = asyncio.create_task(ask("held"))
        await old.holds.wait()
        balancer.pods.append(second)
        while not new.entered:
            assert await ask("texts") == "played"
        # Its connection has had its time, and lasts until it is answered.
        assert not held.done()
        old.go.set()
        assert await held == "played"
