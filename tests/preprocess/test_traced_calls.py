"""Calls of the engine as spans: one call for several requests, each of a trace of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from preprocess.generation.engine import TextEngine
from preprocess.generation.openings import unless_left
from preprocess.generation.sequence import Patience
from preprocess.passage import Departures, Passage
from preprocess.tensors import Tensor
from preprocess.traced_calls import _call_of
from preprocess.triton.client import TritonClient
from preprocess.triton.handed_on import handed_on
from preprocess.triton.http import HttpTriton
from preprocess.triton.replies import Replies
from tests.contract.test_tracing import CALLER, SAMPLED, UNSAMPLED, Kept, queue as queue
from tests.preprocess import virtual_time
from tests.preprocess.test_coalesce import (
    BAD,
    SumEngine,
    coalescer,
    endpoint as endpoint,
    infer,
    soon,
    text,
)
from tests.preprocess.test_several_tritons import ONE, TWO, Playing, ask, queue_of
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError, caller_left, too_late
from transformer_serving.contract.worker.otlp import Span
from transformer_serving.contract.worker.request_context import (
    GoldenBody,
    current_request,
    current_tracestate,
)
from transformer_serving.contract.worker.trace_context import read_traceparent
from transformer_serving.contract.worker.tracing import Tracing


class HearingEngine(SumEngine):
    """Keeps what each call would hand on to Triton."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, str]] = []

    async def __call__(self, inputs: list[Tensor], deadline: float) -> Any:
        self.heard.append(dict(handed_on.get()))
        return await super().__call__(inputs, deadline)


def passage(queue: Kept, ratio: float = 1.0) -> Passage:
    return Passage({}, Tracing(queue, ratio, 10))


def left(made: Passage, error: ServingError | None = None) -> dict[str, str]:
    return Departures("texts", 7).headers(made, error)


def called(queue: Kept, name: str) -> list[Span]:
    return [span for span in queue.spans if span.name == name]


async def test_a_call_of_several_traces_is_one_span_and_linked(
    endpoint: Endpoint, queue: Kept
) -> None:
    engine = HearingEngine()
    line = coalescer(endpoint, engine, slots=1)
    made = [passage(queue), passage(queue, 0), passage(queue), passage(queue)]
    assert made[1].trace is None
    await asyncio.gather(*(infer(line, [text(at + 1)], soon(), one) for at, one in enumerate(made)))
    assert engine.calls == [(4, 8)]
    for one in made:
        one.tokenized = one.left = one.answered = one.arrived
        left(one)
    (call,) = called(queue, "engine call")
    (heard,) = engine.heard
    first, *others = [one.trace for one in made if one.trace is not None]
    context = read_traceparent(heard["traceparent"])
    assert context is not None
    assert (context.trace_id, context.span_id, context.sampled) == (
        first.trace.trace_id, call.span_id, True
    )  # fmt: skip
    stages = {span.trace_id: span for span in called(queue, "infer")}
    assert len(stages) == 3
    mine = stages.pop(first.trace.trace_id)
    assert (call.trace_id, call.parent_id, mine.links) == (mine.trace_id, mine.span_id, ())
    assert set(call.links) == {(span.trace_id, span.span_id) for span in stages.values()}
    assert {span.links for span in stages.values()} == {((call.trace_id, call.span_id),)}
    assert call.attributes == {
        "transformer_serving.call.requests": 4, "transformer_serving.call.texts": 4,
        "transformer_serving.call.tokens": 12, "transformer_serving.call.padding": 20,
    }  # fmt: skip
    assert (call.kind, call.failed) == ("client", False)
    assert not line._traced


async def test_a_request_that_is_not_traced_hands_nothing_on(
    endpoint: Endpoint, queue: Kept
) -> None:
    engine = HearingEngine()
    line = coalescer(endpoint, engine)
    one = passage(queue, 0)
    await infer(line, [text(1)], soon(), one)
    golden = Passage(GoldenBody(), Tracing(queue, 1, 10))
    await infer(line, [text(1)], soon(), golden)
    left(one)
    assert engine.heard == [{}, {}]
    assert not queue.spans


class Hearing(Playing):
    """A Triton of several that keeps what its calls handed on."""

    heard: list[dict[str, str]]

    async def infer(self, model: str, version: int, inputs: Any, outputs: Any) -> list[Any]:
        answer = await super().infer(model, version, inputs, outputs)
        self.heard.append(dict(handed_on.get()))
        return answer


@pytest.mark.parametrize("why", ["away", "lacking"])
def test_calls_that_leave_as_a_triton_is_back_are_in_no_trace_of_who_noticed_that_it_went(
    why: str, endpoint: Endpoint, queue: Kept
) -> None:
    async def play() -> list[str]:
        Hearing.begin()
        Hearing.heard = []
        Hearing.hung = {TWO}
        getattr(Hearing, why).add(ONE if why == "away" else (ONE, "m"))
        line = queue_of(TritonClient(f"{ONE},{TWO}", Hearing), endpoint)
        first = await ask(line, 1.0, passage(queue))
        others = [asyncio.ensure_future(ask(line)) for _ in range(20)]
        await asyncio.sleep(5.0)
        getattr(Hearing, why).clear()
        return [first, *await asyncio.gather(*others)]

    assert {"deadline", "ok"} <= set(virtual_time.run(play()))
    assert {} in Hearing.heard
    assert not any(Hearing.heard)


async def test_a_call_is_in_no_requests_context(endpoint: Endpoint) -> None:
    """It is of many requests, and the task that makes it outlives the one that came first."""
    seen: list[object] = []

    class Seeing(SumEngine):
        async def __call__(self, inputs: list[Tensor], deadline: float) -> Any:
            seen.append(current_request.get())
            return await super().__call__(inputs, deadline)

    token = current_request.set(("mine", SAMPLED))
    try:
        await infer(coalescer(endpoint, Seeing()), [text(1)], soon())
    finally:
        current_request.reset(token)
    assert seen == [None]


async def test_every_call_that_looks_for_a_bad_text_is_a_span(
    endpoint: Endpoint, queue: Kept
) -> None:
    engine = HearingEngine()
    line = coalescer(endpoint, engine, slots=1)
    bad = passage(queue)
    outcomes = await asyncio.gather(
        infer(line, [text(BAD)], soon(), bad), infer(line, [text(1)], soon()),
        return_exceptions=True,
    )  # fmt: skip
    error = outcomes[0]
    assert isinstance(error, ServingError)
    left(bad, error)
    calls = called(queue, "engine call")
    assert len(calls) == sum(bool(heard) for heard in engine.heard) >= 2
    assert all(span.failed for span in calls)
    (own,) = called(queue, "serve texts")
    assert own.failed
    assert own.attributes["http.response.status_code"] == 502
    assert own.kind == "server"


async def test_the_gateways_span_is_the_parent(endpoint: Endpoint, queue: Kept) -> None:
    engine = HearingEngine()
    line = coalescer(endpoint, engine)
    tokens = current_request.set(("mine", SAMPLED)), current_tracestate.set("a=1,b=2")
    try:
        one = passage(queue, 0)
    finally:
        current_request.reset(tokens[0])
        current_tracestate.reset(tokens[1])
    await infer(line, [text(1)], soon(), one)
    left(one)
    (own,) = called(queue, "serve texts")
    assert (own.trace_id, own.parent_id, own.kind) == (CALLER.trace_id, CALLER.span_id, "internal")
    assert own.attributes["transformer_serving.request_id"] == "mine"
    assert engine.heard[0]["tracestate"] == "a=1,b=2"
    assert {span.state for span in queue.spans} == {"a=1,b=2"}
    token = current_request.set(("mine", UNSAMPLED))
    try:
        assert passage(queue).trace is None
    finally:
        current_request.reset(token)


async def test_stages_follow_each_other_within_the_request(endpoint: Endpoint, queue: Kept) -> None:
    line = coalescer(endpoint, HearingEngine())
    one = passage(queue)
    one.note(await line.infer([text(1)], soon(), one))
    left(one)
    (own,) = called(queue, "serve texts")
    stages = [span for span in queue.spans if span.kind == "internal"]
    assert [span.name for span in stages] == ["tokenize", "queue", "infer", "post"]
    assert {span.parent_id for span in stages} == {own.span_id}
    times = [own.start_ns, *(span.end_ns for span in stages)]
    # Sums of seconds, rounded: a microsecond.
    for span, before in zip(stages, times, strict=False):
        assert abs(span.start_ns - before) < 1000
        assert span.start_ns <= span.end_ns <= own.end_ns + 1000


async def test_http_writes_it_into_the_head() -> None:
    """To a server that keeps what it is asked."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 503 no\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        triton = HttpTriton(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        for more in ((), (("traceparent", SAMPLED), ("tracestate", "a=1"))):
            token = handed_on.set(more)
            with pytest.raises(ServingError):
                await triton.infer("m", 1, [], [])
            handed_on.reset(token)
        triton.close()
    plain, traced = asked
    assert b"trace" not in plain
    lines = traced.decode().split("\r\n")
    assert f"traceparent: {SAMPLED}" in lines
    assert "tracestate: a=1" in lines
    assert set(plain.decode().split("\r\n")) < set(lines)


class Opening(TextEngine):
    """A stream that opens, or does not."""

    def __init__(self, error: ServingError | None = None) -> None:
        self.error = error
        self.heard: dict[str, str] = {}

    async def _opened(self, request: Any, patience: Patience) -> Replies:
        self.heard = dict(handed_on.get())
        if self.error is not None:
            raise self.error

        async def none() -> Any:
            return
            yield

        return Replies(none(), lambda: None)


async def test_a_stream_is_a_span_until_it_is_closed(queue: Kept) -> None:
    engine, one = Opening(), passage(queue)
    assert one.trace is not None
    replies = await engine._open(None, Patience(soon(), 30.0), one)  # type: ignore[arg-type]
    assert not queue.spans
    replies.close()
    replies.close()
    (span,) = queue.spans
    assert (span.name, span.kind, span.failed) == ("engine stream", "client", False)
    assert (span.trace_id, span.parent_id) == (one.trace.trace.trace_id, one.trace.trace.span_id)
    assert engine.heard == {"traceparent": one.trace.trace.traceparent(span.span_id)}
    ((name, at),) = span.events
    assert name == "first token"
    assert span.start_ns <= at <= span.end_ns
    assert handed_on.get() == ()


async def test_a_stream_that_a_fault_cuts_is_a_failed_span(queue: Kept) -> None:
    engine = Opening()
    replies = await engine._open(None, Patience(soon(), 30.0), passage(queue))  # type: ignore[arg-type]
    replies.close(failed=True)
    (span,) = queue.spans
    assert span.failed
    assert [name for name, _ in span.events] == ["first token"]


@pytest.mark.parametrize(
    ("error", "failed"), [(None, False), (caller_left(), False), (too_late(), True)],
    ids=["ok", "left", "deadline"],
)  # fmt: skip
def test_a_request_whose_answer_goes_on_is_a_span_until_it_has_ended(
    queue: Kept, error: ServingError | None, failed: bool
) -> None:
    one = passage(queue)
    one.tokenized = one.left = one.answered = one.arrived
    departures = Departures("texts", 7)
    departures.headers(one, goes_on=True)
    assert not queue.spans
    departures.ended(one, error)
    (own,) = called(queue, "serve texts")
    assert own.failed is failed
    assert own.attributes["http.response.status_code"] == 200


async def test_a_caller_that_leaves_before_the_first_token_fails_no_span(queue: Kept) -> None:
    """As one that leaves after it, and as the spans of its request."""
    opening = asyncio.Event()

    class Waiting(Opening):
        async def _opened(self, request: Any, patience: Patience) -> Replies:
            opening.set()
            await asyncio.Event().wait()
            raise AssertionError

    one, caller = passage(queue), asyncio.get_running_loop().create_future()
    opened = Waiting()._open(None, Patience(soon(), 30.0), one)  # type: ignore[arg-type]
    asked = asyncio.ensure_future(unless_left(opened, caller))
    await opening.wait()
    caller.set_result(None)
    with pytest.raises(ServingError, match="closed the connection"):
        await asked
    (span,) = queue.spans
    assert (span.name, span.failed, span.events) == ("engine stream", False, ())


@pytest.mark.parametrize(
    ("error", "failed"),
    [(asyncio.CancelledError(), False), (caller_left(), False), (too_late(), True),
     (ValueError("of ours"), True)],
    ids=["cancelled", "left", "deadline", "another"],
)  # fmt: skip
async def test_a_call_fails_by_what_is_a_fault(
    queue: Kept, error: BaseException, failed: bool
) -> None:
    """Of one that a worker's end breaks off, nobody says that it went wrong."""
    made = passage(queue)
    assert made.trace is not None
    with pytest.raises(type(error)), _call_of([made.trace], {}):
        raise error
    (call,) = called(queue, "engine call")
    assert call.failed is failed


async def test_a_stream_that_does_not_open_is_a_failed_span(queue: Kept) -> None:
    engine = Opening(ServingError("unavailable", "gone"))
    with pytest.raises(ServingError):
        await engine._open(None, Patience(soon(), 30.0), passage(queue))  # type: ignore[arg-type]
    (span,) = queue.spans
    assert (span.failed, span.events) == (True, ())
