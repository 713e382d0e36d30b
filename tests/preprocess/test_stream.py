"""A stream whose engine knows a farewell is never cancelled: what its Triton sees of callers that
stay, leave, or lose patience.

The Triton is a real gRPC server whose language model tells one number after the other.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from preprocess.tensors import Tensor
from preprocess.triton import stream
from preprocess.triton.errors import AwayError
from preprocess.triton.grpc import GrpcTriton
from preprocess.triton.replies import Replies
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.open_streams import streams_ended

FAREWELL = 0
REQUEST = StreamedRequest(
    "one",
    [Tensor("input_ids", "INT32", np.array([5], np.int32))],
    [Tensor("input_ids", "INT32", np.array([FAREWELL], np.int32))],
)


@dataclass
class Numbers(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """`last` is the last answer's number; `deaf` goes on, or stays silent, after a farewell, which
    `refuses` answers with an error, as Triton does while the model is unloaded."""

    last: int = 3
    gap_s: float = 0.0
    deaf: bool = False
    refuses: bool = False
    status: grpc.StatusCode | None = None
    asked: list[tuple[str, int]] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def ModelStreamInfer(
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        # As a Triton does; before it, an abort would leave the request unread.
        message = await anext(aiter(requests))
        [first] = np.frombuffer(message.raw_input_contents[0], np.int32)
        self.asked.append((message.id, int(first)))
        if first == FAREWELL:
            yield self.parted()
            return
        try:
            for number in range(1, self.last + 1):
                await asyncio.sleep(self.gap_s)
                ends = self.left.is_set() and not self.deaf
                yield _answer(number, final=number == self.last or ends)
                if ends:
                    break
            if self.status is not None:
                await context.abort(self.status, "a word")
            async for more in requests:
                self.asked.append((more.id, -1))
            self.ends.append("whole")
        except (asyncio.CancelledError, GeneratorExit):
            # The second where gRPC is just sending what came before.
            self.ends.append("cancelled")
            raise

    def parted(self) -> Any:
        if self.refuses:
            return service_pb2.ModelStreamInferResponse(error_message="unknown model")
        self.left.set()
        return _answer(0, final=True)

    async def ended(self) -> str:
        async with asyncio.timeout(20):
            while not self.ends:
                await asyncio.sleep(0.01)
        return self.ends[-1]


def _answer(number: int, *, final: bool) -> Any:
    reply = service_pb2.ModelInferResponse(
        outputs=[
            service_pb2.ModelInferResponse.InferOutputTensor(
                name="number", datatype="INT32", shape=[1]
            )
        ],
        raw_output_contents=[np.array([number], np.int32).tobytes()],
    )
    reply.parameters["triton_final_response"].bool_param = final
    return service_pb2.ModelStreamInferResponse(infer_response=reply)


@pytest.fixture
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture
async def triton(numbers: Numbers) -> AsyncIterator[GrpcTriton]:
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(numbers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    client = GrpcTriton(f"127.0.0.1:{port}")
    yield client
    client.close()
    await server.stop(None)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_END_S", 0.3)


async def opened(
    triton: GrpcTriton,
    request: StreamedRequest = REQUEST,
    arrived: Callable[[float], object] = lambda at: None,
) -> Replies:
    return await triton.open("m", 1, request, 30.0, arrived)


def number(outputs: Any) -> int:
    return int(np.frombuffer(outputs["number"].raw, np.int32)[0])


async def test_read_to_its_end_it_ends_by_itself(triton: GrpcTriton, numbers: Numbers) -> None:
    replies = await opened(triton)
    assert number(replies.first) == 1
    assert [number(await replies.next()) for _ in range(2)] == [2, 3]
    replies.close()
    assert await numbers.ended() == "whole"
    assert numbers.asked == [("one", 5)]


async def test_answers_are_told_of_as_they_come_though_nobody_reads(
    triton: GrpcTriton, numbers: Numbers
) -> None:
    """But none to whoever has left."""
    numbers.gap_s = 0.02
    before, times = time.monotonic(), list[float]()
    replies = await opened(triton, arrived=times.append)
    assert await numbers.ended() == "whole"
    assert len(times) == 3
    assert before < times[0] < times[1] < times[2] < time.monotonic()
    replies.close()
    numbers.last = 10_000
    left = await opened(triton, arrived=times.append)
    left.close()
    await asyncio.sleep(0)
    told = len(times)
    numbers.ends.clear()
    assert await numbers.ended() == "whole"
    assert len(times) == told


async def test_who_leaves_says_farewell(triton: GrpcTriton, numbers: Numbers) -> None:
    numbers.last, numbers.gap_s = 10_000, 0.01
    replies = await opened(triton)
    replies.close()
    assert await numbers.ended() == "whole"
    assert numbers.asked == [("one", 5), ("", 0)]


async def test_a_farewell_that_is_refused_lets_it_end_by_itself(
    triton: GrpcTriton, numbers: Numbers
) -> None:
    numbers.last, numbers.gap_s, numbers.refuses = 20, 0.01, True
    replies = await opened(triton)
    replies.close()
    # Who closes twice parts once.
    replies.close()
    assert await numbers.ended() == "whole"
    assert numbers.asked == [("one", 5), ("", 0)]


async def test_a_worker_waits_for_what_nobody_else_waits_for(
    triton: GrpcTriton, numbers: Numbers
) -> None:
    numbers.last, numbers.gap_s = 10_000, 0.05
    replies = await opened(triton)
    assert not await streams_ended(0.01)
    replies.close()
    assert await streams_ended(20)
    assert numbers.ends == ["whole"]
    assert await streams_ended(0)


async def test_without_a_farewell_it_is_cancelled(triton: GrpcTriton, numbers: Numbers) -> None:
    numbers.last, numbers.gap_s = 10_000, 0.01
    replies = await opened(triton, replace(REQUEST, farewell=None))
    replies.close()
    assert await numbers.ended() == "cancelled"
    assert numbers.asked == [("one", 5)]


async def test_without_a_farewell_its_last_answer_still_ends_it(
    triton: GrpcTriton, numbers: Numbers
) -> None:
    """Who closes after that cancels nothing, which Triton may not survive."""
    for _ in range(50):
        replies = await opened(triton, replace(REQUEST, farewell=None))
        assert [number(await replies.next()) for _ in range(2)] == [2, 3]
        replies.close()
        assert await numbers.ended() == "whole"
        numbers.ends.clear()


async def test_who_is_not_waited_for_any_more_does_not_cancel_it(
    triton: GrpcTriton, numbers: Numbers
) -> None:
    """A time limit around one answer, then the next one all the same."""
    numbers.gap_s = 0.2
    replies = await opened(triton)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await replies.next()
    replies.close()
    assert await numbers.ended() == "whole"


async def test_a_caller_that_leaves_before_the_first_answer(
    triton: GrpcTriton, numbers: Numbers
) -> None:
    numbers.gap_s = 0.2
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await opened(triton)
    assert await numbers.ended() == "whole"
    assert numbers.asked[-1] == ("", 0)


async def test_from_another_thread(triton: GrpcTriton, numbers: Numbers) -> None:
    numbers.last, numbers.gap_s = 10_000, 0.01
    replies = await opened(triton)
    thread = threading.Thread(target=replies.close)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert await numbers.ended() == "whole"


async def test_an_engine_that_does_not_listen_is_cut_off(
    impatient: None, triton: GrpcTriton, numbers: Numbers
) -> None:
    numbers.last, numbers.gap_s, numbers.deaf = 10_000, 0.05, True
    replies = await opened(triton)
    replies.close()
    assert await numbers.ended() == "cancelled"
    assert numbers.asked == [("one", 5), ("", 0)]


@pytest.mark.parametrize(
    ("status", "error"),
    [(grpc.StatusCode.UNAVAILABLE, AwayError), (grpc.StatusCode.INTERNAL, ServingError)],
)
async def test_an_error_in_the_middle(
    triton: GrpcTriton, numbers: Numbers, status: grpc.StatusCode, error: type[Exception]
) -> None:
    numbers.status = status
    replies = await opened(triton)
    assert [number(await replies.next()) for _ in range(2)] == [2, 3]
    with pytest.raises(error):
        await replies.next()
    replies.close()
    assert numbers.asked == [("one", 5)]


async def test_a_hundred_at_a_time(triton: GrpcTriton, numbers: Numbers) -> None:
    numbers.last = 20
    streams = await asyncio.gather(*(opened(triton) for _ in range(100)))
    for at, replies in enumerate(streams):
        for _ in range(at % 21):
            await replies.next()
        replies.close()
    async with asyncio.timeout(20):
        while len(numbers.ends) < 100:
            await asyncio.sleep(0.01)
    assert set(numbers.ends) == {"whole"}


async def test_a_client_that_is_closed_lets_its_streams_end(
    triton: GrpcTriton, numbers: Numbers
) -> None:
    """As at a new release of this code, and of a Triton that has left its name."""
    numbers.gap_s = 0.1
    replies = await opened(triton)
    [channel] = triton._channels.values()
    triton.close()
    assert [number(await replies.next()) for _ in range(2)] == [2, 3]
    replies.close()
    assert await numbers.ended() == "whole"
    async with asyncio.timeout(20):
        while channel._closing is None or not channel._closing.done():
            await asyncio.sleep(0.01)
    # Who asks again has another channel.
    replies = await opened(triton)
    replies.close()


async def test_who_leaves_a_closed_client_says_farewell_too(
    triton: GrpcTriton, numbers: Numbers
) -> None:
    numbers.last, numbers.gap_s = 10_000, 0.01
    replies = await opened(triton)
    triton.close()
    await asyncio.sleep(0.1)
    replies.close()
    assert await numbers.ended() == "whole"
    assert numbers.asked == [("one", 5), ("", 0)]
