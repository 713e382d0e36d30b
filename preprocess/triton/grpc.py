"""One Triton over gRPC; imported only where that transport is chosen.

A call costs the event loop about twice what HTTP's costs it.

Tested by tests/preprocess/test_triton_client.py and tests/preprocess/test_vanished_triton.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from preprocess.tensors import Array, RawOutput, Tensor, read_outputs
from preprocess.triton.errors import error_of
from preprocess.triton.handed_on import handed_on
from preprocess.triton.replies import Arrived, Outputs, Replies
from preprocess.triton.stream import Stream
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.endpoint import OutputTensor

# A peer that vanished without a word is noticed in about ten seconds, as over HTTP. Only beside
# calls that have waited so long: an idle channel, and one whose calls take less, sends no ping.
# One, then one a minute: a Triton at its own defaults closes a connection on which three minutes
# pass so, with nothing answered; the Tritons that this project starts take any number.
_PING_AFTER_MS = 5_000
_PING_LIMIT_MS = 5_000
# A stream that fails ends with gRPC's status; without this Triton sends the text alone.
_WITH_STATUS = (("triton_grpc_error", "true"),)
_OPTIONS = (
    # A proxy of the environment is for the world outside; HTTP's connections ask none either.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A Triton that is back is found within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", _PING_AFTER_MS),
    ("grpc.keepalive_timeout_ms", _PING_LIMIT_MS),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 1),
    # Else channels of one address share a connection, also that of a loop that is gone.
    ("grpc.use_local_subchannel_pool", 1),
)


class _Channel:
    """Of one event loop. It is closed when nobody wants it any more and its last call has ended: a
    channel that closes takes no farewell of a stream, and cancels what runs after its grace.
    """

    def __init__(self, target: str) -> None:
        self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self._stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._running = 0
        self._wanted = True
        self._closing: asyncio.Task[None] | None = None

    def call(self, method: str, request: Any, **options: Any) -> Any:
        """Every call has an end: a stream its limit, another one's caller a deadline."""
        call = getattr(self._stub, method)(request, **options)
        self._running += 1
        call.add_done_callback(self._ended)
        return call

    def close(self) -> None:
        self._wanted = False
        self._close_when_idle()

    def _ended(self, _: Any) -> None:
        self._running -= 1
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if not self._wanted and not self._running and self._closing is None:
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._channel.close(grace=None))


class GrpcTriton:
    """One Triton by its address, an IP with its port or unix:/path; a channel an event loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channels: dict[asyncio.AbstractEventLoop, _Channel] = {}

    async def infer(
        self, model: str, version: int, inputs: Sequence[Tensor], outputs: Sequence[OutputTensor]
    ) -> list[Array]:
        """The outputs of exactly that model version. Raises ServingError, AwayError."""
        request = _request(model, version, inputs, [output.name for output in outputs])
        return read_outputs(_outputs(await self._ask("ModelInfer", request)), outputs)

    async def open(
        self, model: str, version: int, request: StreamedRequest, left_s: float, arrived: Arrived
    ) -> Replies:
        """The answers of one request to exactly that model version, the first of which is here.

        Nobody may wait for longer than `left_s` seconds; `arrived` is told of each answer. Raises
        ServingError, AwayError.
        """
        message = _request(model, version, request.inputs, ())
        message.id = request.id
        last = request.farewell
        farewell = None if last is None else _request(model, version, last, ())
        stream = Stream(
            partial(
                self._channel().call, "ModelStreamInfer",
                metadata=(*_WITH_STATUS, *handed_on.get()),
            ),
            message, farewell, left_s, arrived,
        )  # fmt: skip
        replies = Replies(_answers(stream), stream.leave, lambda: stream.came)
        try:
            await replies.begin()
        except BaseException:
            replies.close()
            raise
        return replies

    async def is_ready(self, model: str, version: int) -> bool:
        request = service_pb2.ModelReadyRequest(name=model, version=str(version))
        return bool((await self._ask("ModelReady", request)).ready)

    async def is_live(self) -> bool:
        return bool((await self._ask("ServerLive", service_pb2.ServerLiveRequest())).live)

    def close(self) -> None:
        """Close the channels, each in its own loop, when the calls that run on them are done."""
        while self._channels:
            loop, channel = self._channels.popitem()
            if not loop.is_closed():
                loop.call_soon_threadsafe(channel.close)

    async def _ask(self, method: str, request: Any) -> Any:
        try:
            return await self._channel().call(method, request, metadata=handed_on.get() or None)
        except grpc.aio.AioRpcError as error:
            raise error_of(error.code().name, error.details() or "") from error

    def _channel(self) -> _Channel:
        loop = asyncio.get_running_loop()
        if loop not in self._channels:
            target = self.address if self.address.startswith("unix:") else f"ipv4:{self.address}"
            if self.address.startswith("["):
                target = f"ipv6:{self.address}"
            self._channels[loop] = _Channel(target)
        return self._channels[loop]


def _request(
    model: str, version: int, inputs: Sequence[Tensor], outputs: Sequence[str]
) -> service_pb2.ModelInferRequest:
    return service_pb2.ModelInferRequest(
        model_name=model,
        model_version=str(version),
        inputs=[
            service_pb2.ModelInferRequest.InferInputTensor(
                name=tensor.name, datatype=tensor.dtype, shape=tensor.array.shape
            )
            for tensor in inputs
        ],
        outputs=[
            service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in outputs
        ],
        raw_input_contents=[tensor.raw() for tensor in inputs],
    )


def _outputs(reply: Any) -> Outputs:
    return {
        row.name: RawOutput(row.datatype, row.shape, raw)
        for row, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
    }


async def _answers(stream: Stream) -> AsyncIterator[Outputs]:
    """Raises ServingError, AwayError."""
    try:
        async for message in stream.answers():
            if message.error_message:
                raise error_of("", message.error_message)
            yield _outputs(message.infer_response)
    except grpc.aio.AioRpcError as error:
        raise error_of(error.code().name, error.details() or "") from error
