"""Which connections come to a worker's port, and which it keeps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages, service_pb2_grpc

from tests.free_ports import free_port
from tests.gateway.test_grpc_memory import TOTAL, Held, frame, refused, serving
from transformer_serving.gateway.grpc_port.port import GrpcPort
from transformer_serving.gateway.server.listener import hold
from transformer_serving.gateway.settings import read_settings

# Each comes to either port as if by a coin.
CONNECTIONS = 20
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_SETTINGS, _PING, _ACK = 4, 6, 1
# As often as gRPC's own library pings at all, however small a time it is told.
PINGING = [
    ("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]  # fmt: skip
# gRPC's servers close a connection at the fourth where nothing else is said.
PINGS = 5


@contextlib.asynccontextmanager
async def ports(count: int) -> AsyncIterator[tuple[str, list[GrpcPort]]]:
    """As the workers of one gateway make them, none of them started; their address."""
    number = free_port()
    address, app = f"127.0.0.1:{number}", Held(TOTAL)
    app.go.set()
    with hold("127.0.0.1", number):
        made = [GrpcPort(app, address, read_settings({}), graceful_seconds=1) for _ in range(count)]
        try:
            yield address, made
        finally:
            for one in made:
                one.stop()
                await one.ended.wait()


async def ask(address: str) -> str | None:
    """What is answered on a connection of its own."""
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=own) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        asked = stub.ModelInfer(messages.ModelInferRequest(model_name="texts"))
        details: str | None = (await refused(asked)).details()
        return details


async def test_no_connection_comes_to_a_worker_that_starts() -> None:
    """Its port is made before its endpoints are, which may take minutes."""
    async with asyncio.timeout(60), ports(2) as (address, (serving, starting)):
        await serving.start()
        answers = await asyncio.gather(*(ask(address) for _ in range(CONNECTIONS)))
        assert answers == ["played"] * CONNECTIONS
        await starting.start()
        serving.stop()
        await serving.ended.wait()
        assert await ask(address) == "played"


async def test_one_that_is_told_to_leave_before_its_start_has_ended() -> None:
    async with asyncio.timeout(60), ports(1) as (_, (starting,)):
        starting.stop()
        await starting.ended.wait()


class Relay:
    """Hands connections on to a port; `pinged` has one future a connection, which is done at the
    last of PINGS pings, and failed where the connection ends before.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.pinged: list[asyncio.Future[None]] = []

    async def hand_on(self, caller: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        pinged = asyncio.get_running_loop().create_future()
        self.pinged.append(pinged)
        answers, on = await asyncio.open_connection("127.0.0.1", self._port)
        answering = asyncio.create_task(_copy(answers, back))
        pings = 0
        try:
            on.write(await caller.readexactly(len(_PREFACE)))
            while True:
                head = await caller.readexactly(_HEAD_BYTES)
                on.write(head + await caller.readexactly(int.from_bytes(head[:3])))
                pings += head[3] == _PING and not head[4] & _ACK
                if pings == PINGS and not pinged.done():
                    pinged.set_result(None)
        except (asyncio.IncompleteReadError, OSError) as error:
            if not pinged.done():
                pinged.set_exception(error)
        finally:
            on.close()
            await answering


async def _copy(answers: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while some := await answers.read(65_536):
            back.write(some)
    back.close()


@pytest.mark.slow
async def test_a_connection_that_is_pinged_stays_with_a_call_and_without() -> None:
    async with asyncio.timeout(60), serving() as (app, port):
        relay = Relay(port)
        async with await asyncio.start_server(relay.hand_on, "127.0.0.1", 0) as between:
            address = f"127.0.0.1:{between.sockets[0].getsockname()[1]}"
            async with (
                grpc.aio.insecure_channel(address, options=PINGING) as idle,
                grpc.aio.insecure_channel(address, options=PINGING) as asking,
            ):
                await idle.channel_ready()
                stub = service_pb2_grpc.GRPCInferenceServiceStub(asking)
                asked = stub.ModelInfer(messages.ModelInferRequest(model_name="texts"))
                answer = asyncio.create_task(refused(asked))
                while not app.entered:
                    await asyncio.sleep(0.01)
                await asyncio.gather(*relay.pinged)
                app.go.set()
                assert (await answer).details() == "played"
                assert len(relay.pinged) == 2


async def test_a_flood_of_pings_ends_its_connection() -> None:
    async with asyncio.timeout(60), serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        with contextlib.closing(writer):
            writer.write(_PREFACE + frame(_SETTINGS, 0, 0, b"") + frame(_PING, 0, 0, bytes(8)) * 4)
            await reader.readuntil(b"too_many_pings")


def waits_ms(port: int) -> list[int]:
    """For who does not read: of this process's connections that came to the port."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), open(os.dup(number), "rb", buffering=0) as copy:
            one = socket.socket(fileno=copy.fileno())
            try:
                listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if one.family != socket.AF_UNIX and one.getsockname()[1] == port and not listens:
                    found.append(one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
            finally:
                one.detach()
    return found


async def test_who_does_not_read_is_not_waited_for_without_end() -> None:
    """gRPC sees to it itself, where HTTP's listener is told to."""
    async with asyncio.timeout(60), serving() as (app, port):
        app.go.set()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            await channel.channel_ready()
            assert waits_ms(port) == [20_000]
