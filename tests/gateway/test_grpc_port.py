"""Of two workers' ports the system gives connections to each that is listened on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
from tritonclient.grpc import service_pb2 as messages, service_pb2_grpc

from tests.free_ports import free_port
from tests.gateway.test_grpc_memory import TOTAL, Held, refused
from transformer_serving.gateway.grpc_port.port import GrpcPort
from transformer_serving.gateway.server.listener import hold
from transformer_serving.gateway.settings import read_settings

# Each comes to either port as if by a coin.
CONNECTIONS = 20


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
