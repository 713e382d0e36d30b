"""What calls of gRPC hold counts as bodies do, and none holds its part without end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as messages, service_pb2_grpc

from tests.free_ports import free_port
from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.body.memory import body_memory
from transformer_serving.gateway.connections import KEPT_SECONDS
from transformer_serving.gateway.grpc_port import port as grpc_port
from transformer_serving.gateway.grpc_port.messages import check_elements
from transformer_serving.gateway.grpc_port.port import GrpcPort
from transformer_serving.gateway.settings import GatewaySettings, read_settings

MOST, TOTAL = 100_000, 250_000
SERVICE = b"/inference.GRPCInferenceService/"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_HEADERS = 4


class Held:
    """An app that counts each body as the front door does, and answers once `go` is set."""

    is_known = True

    def __init__(self, total: int) -> None:
        self.bodies = body_memory(total)
        self.go = asyncio.Event()
        self.refused: list[str] = []
        self.entered = 0

    def check_key(self, _: Any) -> None:
        if not self.is_known:
            raise ServingError("unauthorized", "played")

    def count_refusal(self, error: ServingError) -> None:
        self.refused.append(error.kind.code)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.entered += 1
        with self.bodies.share() as share:
            share.take(len((await receive())["body"]), is_here=True)
            await self.go.wait()
        await send({"type": "http.response.start", "status": 400, "headers": []})
        body = b'{"code": "invalid_field", "error": "played"}'
        await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serving(
    total: int = TOTAL, stall_s: float = 60, elements: int = 100_000
) -> AsyncIterator[tuple[Held, int]]:
    settings = replace(
        read_settings({}), max_body_bytes=MOST, max_body_elements=elements,
        body_memory_bytes=total, body_stall_seconds=stall_s,
    )  # fmt: skip
    app = Held(total)
    async with port_of(app, settings) as port:
        yield app, port


@contextlib.asynccontextmanager
async def port_of(
    app: Held, settings: GatewaySettings, kept_seconds: float = KEPT_SECONDS
) -> AsyncIterator[int]:
    """Serves the app; at the end what it holds goes on."""
    port = free_port()
    served = GrpcPort(
        app, f"127.0.0.1:{port}", settings, graceful_seconds=1, kept_seconds=kept_seconds
    )
    await served.start()
    try:
        yield port
    finally:
        app.go.set()
        served.stop()
        await served.ended.wait()


def large(size: int = MOST - 1000) -> Any:
    row = messages.ModelInferRequest.InferInputTensor(name="args", datatype="BYTES", shape=[1])
    row.contents.bytes_contents.append(b"a" * size)
    return messages.ModelInferRequest(model_name="texts", inputs=[row])


async def refused(call: Any) -> grpc.aio.AioRpcError:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("it was answered")


async def given_back(app: Held) -> None:
    """Within the test's own time: a caller has its answer before its part is counted off."""
    while app.bodies.held:
        await asyncio.sleep(0.001)


async def test_calls_beyond_the_total_of_bodies_are_refused() -> None:
    async with (
        asyncio.timeout(60),
        serving() as (app, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [asyncio.create_task(refused(stub.ModelInfer(large()))) for _ in range(8)]
        while sum(call.done() for call in calls) < 6:
            assert app.bodies.held <= TOTAL
            await asyncio.sleep(0.01)
        app.go.set()
        errors = await asyncio.gather(*calls)
        over = [one for one in errors if one.code() is grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert [one.code().name for one in errors].count("INVALID_ARGUMENT") == len(errors) - len(
            over
        )
        assert len(errors) > len(over) >= 6
        assert "TRANSFORMER_SERVING_BODY_MEMORY_BYTES" in (over[0].details() or "")
        assert ("retry-after", "1") in list(over[0].trailing_metadata())
        await given_back(app)


async def test_a_call_that_waits_for_its_answer_keeps_no_message() -> None:
    """Its bytes are the app's by then, which counts them."""
    async with (
        asyncio.timeout(60),
        serving() as (app, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        # Given as bytes, so that no message of the caller's own is found.
        call: Any = channel.unary_unary(SERVICE.decode() + "ModelInfer")
        raw = messages.ModelInferRequest(model_name="waits").SerializeToString()
        answer = asyncio.create_task(refused(call(raw)))
        while app.entered < 1:
            await asyncio.sleep(0.01)
        # Others' tests run long collections, after which what is alive is not listed.
        gc.unfreeze()
        everything = gc.get_objects()
        kept = [one for one in everything if type(one) is messages.ModelInferRequest]
        assert "waits" not in [one.model_name for one in kept]
        app.go.set()
        assert (await answer).details() == "played"


def empty(count: int, part: str) -> Any:
    """A message with so many of a part that each cost next to nothing to send."""
    asked = messages.ModelInferRequest(model_name="texts")
    row = asked.inputs.add(name="args", datatype="INT64")
    if part == "parameters":
        for number in range(count):
            asked.parameters[str(number)].SetInParent()
    elif part == "shape":
        row.shape.extend([1] * count)
    elif part in ("int64_contents", "bytes_contents"):
        row.datatype = part.split("_")[0].upper()
        getattr(row.contents, part).extend([0 if row.datatype == "INT64" else b""] * count)
    else:
        rows = getattr(asked, part)
        rows.extend([type(rows[0] if rows else rows.add())()] * count)
    return asked


@pytest.mark.parametrize(
    ("part", "fits", "over"),
    [
        ("inputs", 140, 143), ("outputs", 240, 250), ("parameters", 990, 1001),
        ("shape", 990, 1001), ("int64_contents", 990, 1001), ("bytes_contents", 990, 1001),
    ],
)  # fmt: skip
async def test_a_message_of_too_many_elements_is_refused_unread(
    part: str, fits: int, over: int
) -> None:
    """By the limit that bodies of HTTP have. The app is not asked."""
    async with (
        asyncio.timeout(60),
        serving(elements=1000) as (app, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        app.go.set()
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        error = await refused(stub.ModelInfer(empty(over, part)))
        assert error.code() is grpc.StatusCode.OUT_OF_RANGE
        assert "TRANSFORMER_SERVING_MAX_BODY_ELEMENTS" in (error.details() or "")
        assert (app.refused, app.entered) == (["too_large"], 0)
        await given_back(app)
        assert (await refused(stub.ModelInfer(empty(fits, part)))).details() == "played"


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_parameters_of_tensors_count(side: str) -> None:
    asked = messages.ModelInferRequest(model_name="texts")
    row = getattr(asked, side).add(name="args")
    for number in range(1001):
        row.parameters[str(number)].int64_param = 1
    with pytest.raises(ServingError, match="too many tensors") as raised:
        check_elements(asked, asked.ByteSize(), 1000)
    assert raised.value.kind.code == "too_large"


async def test_a_call_beyond_the_most_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_port, "_MAX_CALLS", 3)
    async with (
        asyncio.timeout(60),
        serving() as (app, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [asyncio.create_task(refused(stub.ModelInfer(large(1000)))) for _ in range(3)]
        while app.entered < 3:
            await asyncio.sleep(0.01)
        for ask, message in (
            (stub.ModelInfer, large(1000)),
            (stub.ServerLive, messages.ServerLiveRequest()),
        ):
            over = await refused(ask(message))
            assert over.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (app.entered, [call.done() for call in calls]) == (3, [False] * 3)
        app.go.set()
        assert [error.details() for error in await asyncio.gather(*calls)] == ["played"] * 3
        await heard(port)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def field(name: bytes, value: bytes) -> bytes:
    """A header as HPACK has it without its tables."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def stalled_call(name: bytes = b"ModelInfer") -> bytes:
    """A call in HTTP/2 of whose message only the first bytes come."""
    head = b"".join(
        field(name, value)
        for name, value in (
            (b":method", b"POST"), (b":scheme", b"http"), (b":path", SERVICE + name),
            (b":authority", b"a"), (b"content-type", b"application/grpc"), (b"te", b"trailers"),
        )
    )  # fmt: skip
    begun = struct.pack(">BI", 0, MOST // 2) + b"\x0a\x05"
    return (
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        + frame(_SETTINGS, 0, 0, b"")
        + frame(_HEADERS, _END_HEADERS, 1, head)
        + frame(_DATA, 0, 1, begun)
    )


async def answered(reader: asyncio.StreamReader) -> None:
    """Until the stream of the call gets headers."""
    while True:
        head = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == _HEADERS and int.from_bytes(head[5:], "big") == 1:
            return


async def heard(port: int) -> None:
    """Another caller's message is read, and answered by the app."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        error = await refused(stub.ModelInfer(large(1000)))
        assert error.details() == "played"


async def test_a_message_of_a_stranger_is_not_read() -> None:
    """Its refusal waits neither for the rest of it nor for a turn."""
    async with asyncio.timeout(60), serving(MOST) as (app, port):
        app.is_known = False
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(stalled_call())
            await writer.drain()
            await answered(reader)
            writer.close()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            error = await refused(stub.ModelInfer(large()))
            assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert app.refused == ["unauthorized"] * 4
        await given_back(app)


@pytest.mark.parametrize("name", ["ModelInfer", "ModelReady", "ModelMetadata", "ServerMetadata"])
async def test_a_message_that_is_none_is_told_so(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And leaves its turn to others, and no traceback."""
    async with (
        asyncio.timeout(60),
        serving(MOST) as (app, port),
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        app.go.set()
        call: Any = channel.unary_unary(SERVICE.decode() + name)
        for raw in (b"\xff\xff\xff", b"\x0a\x05a"):
            error = await refused(call(raw))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "no protobuf" in (error.details() or "")
        assert app.refused == ["malformed_body"] * 2
        await given_back(app)
        await heard(port)
    assert not [row for row in caplog.records if row.levelname == "ERROR" or row.exc_info]


async def test_a_call_that_needs_no_key_takes_no_turn() -> None:
    """With room for one alone, a caller with a key is heard beside those that never end."""
    async with (
        asyncio.timeout(60),
        serving(MOST) as (app, port),
        contextlib.AsyncExitStack() as left,
    ):
        app.go.set()
        for name in (b"ServerLive", b"ServerReady", b"ServerLive"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            left.callback(writer.close)
            writer.write(stalled_call(name))
            await writer.drain()
            await answered(reader)
        await heard(port)


async def test_a_message_that_never_ends_is_given_up() -> None:
    """With room for one alone the next one waits for its turn, and gets it."""
    async with asyncio.timeout(60), serving(MOST, stall_s=0.5) as (app, port):
        app.go.set()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(stalled_call())
        await writer.drain()
        await answered(reader)
        await heard(port)
        writer.close()
