"""Who is let in, who is told to come back, and what becomes of work that nobody wants any more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, strategies as st

from preprocess.glance import Glance, glance_at
from preprocess.handover import Successor
from preprocess.passage import Passage
from preprocess.queue.admission import Admission, Share
from preprocess.queue.coalesce import Coalescer
from preprocess.queue.pace import Pace
from preprocess.tensors import Tensor
from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.request_context import (
    GoldenBody,
    current_caller,
    current_operation,
)


class PlayedFigures:
    """What was told of calls and of requests given up."""

    def __init__(self) -> None:
        self.given_up: list[tuple[str, int]] = []

    def call(self, texts: int, tokens: int, padding: int) -> None:
        pass

    def abandoned(self, reason: str, texts: int) -> None:
        self.given_up.append((reason, texts))


class HeldEngine:
    """Answers zeros, each call when the test lets it."""

    def __init__(self) -> None:
        self.texts = 0
        self.held: list[asyncio.Event] = []

    async def __call__(self, inputs: list[Tensor], deadline: float) -> Any:
        rows = len(inputs[0].array)
        self.texts += rows
        self.held.append(asyncio.Event())
        await self.held[-1].wait()
        return [np.zeros((rows, 2), np.float32)]

    def release(self) -> None:
        for event in self.held:
            event.set()


class Line:
    """A queue before a held engine of so many tokens a second, one call at a time, which costs
    nothing but its tokens.
    """

    def __init__(self, endpoint: Endpoint, rate: float | None = None, slots: int = 1) -> None:
        self.engine, self.figures = HeldEngine(), PlayedFigures()
        self.admission = Admission(10**6, 2.0)
        figures: Any = self.figures
        self.queue = Coalescer(endpoint, self.engine, self.admission, lambda: slots, figures)
        self.queue.dispatch.pace = Pace()
        for _ in range(2 if rate is not None else 0):
            running = self.queue.dispatch.pace.begin(10, 0.0)
            self.queue.dispatch.pace.end(running, 10 / (rate or 1), answered=True)
        self.tasks: list[asyncio.Task[Any]] = []

    def ask(
        self, texts: int, *, seconds: float | None = None, caller: Any = None, length: int = 10,
        body: Any = None,
    ) -> asyncio.Task[Any]:  # fmt: skip
        passage = Passage({} if body is None else body)
        passage.texts, passage.own_deadline, passage.caller = texts, seconds is not None, caller
        deadline = time.monotonic() + (30 if seconds is None else seconds)
        encoded = [Encoded([1] * length, [0] * length) for _ in range(texts)]
        self.tasks.append(asyncio.create_task(self._rows(encoded, deadline, passage)))
        return self.tasks[-1]

    async def _rows(self, encoded: list[Encoded], deadline: float, passage: Passage) -> Any:
        return (await self.queue.infer(encoded, deadline, passage)).result()

    @property
    def waiting(self) -> tuple[int, int]:
        return len(self.queue._waiting), self.queue._waiting.tokens


@pytest.fixture
def endpoint(endpoint_json: str) -> Endpoint:
    return read_endpoint(endpoint_json)


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not what():
            await asyncio.sleep(0.002)


def refused(task: asyncio.Task[Any]) -> ServingError | None:
    error = task.exception() if task.done() else None
    return error if isinstance(error, ServingError) else None


async def test_only_so_much_is_let_in_as_ends_within_the_wait(endpoint: Endpoint) -> None:
    line = Line(endpoint, rate=100)  # 10 texts a second
    tasks = [line.ask(1) for _ in range(60)]
    await turns()
    out = [error for task in tasks if (error := refused(task))]
    # The engine's estimate for a call is the one measured: what is let in waits up to 2 s.
    assert {error.kind.code for error in out} == {"overloaded"}
    assert 60 - len(out) <= 25
    assert 60 - len(out) >= 1
    assert all(error.retry_after_s and 1 <= error.retry_after_s <= 20 for error in out)
    line.engine.release()


@pytest.mark.parametrize("seconds", [None, 5.0])
async def test_a_request_alone_is_taken_however_long_it_takes(
    endpoint: Endpoint, seconds: float | None
) -> None:
    """Also where it has a deadline of its own, which its call will not keep: it is no crowd."""
    line = Line(endpoint, rate=1)
    task = line.ask(100, seconds=seconds)
    await turns()
    assert not task.done()
    # An engine as slow as that gets small calls, a quarter of the room.
    assert line.engine.texts == 2
    line.engine.release()


async def test_a_golden_request_that_runs_is_no_crowd(endpoint: Endpoint) -> None:
    """Its worker is idle, so whoever comes is answered, however slow the engine was found."""
    line = Line(endpoint, rate=1)
    line.ask(1, body=GoldenBody())
    await turns()
    alone = line.ask(1)
    await turns()
    assert refused(alone) is None
    second = line.ask(1)
    await turns()
    error = refused(second)
    assert error is not None
    assert error.kind.code == "overloaded"
    line.engine.release()


async def test_a_free_slot_is_not_refused(endpoint: Endpoint) -> None:
    line = Line(endpoint, rate=1, slots=2)
    first = line.ask(1)
    await turns()
    second = line.ask(1)
    await turns()
    third = line.ask(1)
    await turns()
    assert (first.done(), second.done()) == (False, False)
    assert refused(third)
    line.engine.release()


async def test_a_faster_engine_takes_more_without_a_setting(endpoint: Endpoint) -> None:
    taken = []
    for rate in (1000, 3000, 10_000):
        line = Line(endpoint, rate=rate)
        tasks = [line.ask(1) for _ in range(4000)]
        await turns()
        taken.append(sum(not task.done() for task in tasks))
        for task in tasks:
            task.cancel()
        line.engine.release()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert line.waiting == (0, 0)
        assert line.admission.tokens == 0
    assert taken[0] < taken[1] < taken[2]
    assert taken[1] == pytest.approx(3 * taken[0], rel=0.6)


async def test_an_own_deadline_decides_instead(endpoint: Endpoint) -> None:
    line = Line(endpoint, rate=1000)
    for _ in range(100):
        line.ask(1)
    await turns()
    assert line.waiting[0] > 50
    hasty, patient = line.ask(1, seconds=0.2), line.ask(1, seconds=60)
    await turns()
    error = refused(hasty)
    assert error is not None
    assert error.kind.code == "overloaded"
    assert not patient.done()
    line.engine.release()


async def test_before_it_is_tokenized_a_request_is_refused_too(endpoint: Endpoint) -> None:
    line = Line(endpoint, rate=10)
    for _ in range(9):
        line.ask(1)
    await turns()
    with pytest.raises(ServingError, match="waits before this request"):
        line.queue.check_wait(Passage({}), time.monotonic() + 30)
    golden = Passage(GoldenBody())
    line.queue.check_wait(golden, time.monotonic() + 30)
    line.engine.release()
    await asyncio.gather(*line.tasks, return_exceptions=True)


async def test_many_texts_do_not_keep_one_text_out(endpoint: Endpoint) -> None:
    """512 texts are more than 2 s of work; who comes after them waits for a call, not for all."""
    line = Line(endpoint, rate=100)
    line.ask(512)
    await turns()
    small = line.ask(1)
    await turns()
    assert not small.done()
    line.engine.held[0].set()
    await until(lambda: len(line.engine.held) == 2)
    line.engine.held[1].set()
    await until(small.done)
    assert len(small.result()) == 1
    assert line.engine.texts <= 8 * 3
    line.tasks[0].cancel()
    line.engine.release()


async def test_a_passed_deadline_takes_its_texts_out_at_once(endpoint: Endpoint) -> None:
    line = Line(endpoint)
    running = line.ask(1)
    await turns()
    late = line.ask(20, seconds=0.5)
    await turns()
    assert line.waiting == (20, 200)
    await until(late.done)
    error = refused(late)
    assert error is not None
    assert error.kind.code == "deadline"
    assert line.waiting == (0, 0)
    assert line.admission.tokens == 10
    assert line.figures.given_up == [("deadline", 20)]
    line.engine.release()
    await running
    assert line.engine.texts == 1


async def test_what_cannot_end_in_time_any_more_costs_no_call(endpoint: Endpoint) -> None:
    """It was let in while nothing was known of the engine, which turns out to be slow."""
    line = Line(endpoint, slots=2)
    first = line.ask(1)
    await turns()
    line.ask(8)
    await turns()
    # More than run, or it would take nothing from anybody; and longer than the test waits.
    hopeless = line.ask(16, seconds=60)
    await turns()
    assert line.waiting[0] == 16
    # Ten seconds a text: eight run before.
    pace = Pace()
    for _ in range(2):
        running = pace.begin(10, 0.0)
        pace.end(running, 10.0, answered=True)
    known = line.queue.dispatch.pace
    known.rate, known.call_s, known.cost = pace.rate, pace.call_s, pace.cost
    line.engine.held[0].set()
    await until(hopeless.done)
    error = refused(hopeless)
    known.rate = None
    assert error is not None
    assert line.waiting == (0, 0)
    line.engine.release()
    await first


@pytest.mark.parametrize("way", ["told", "cancelled"])
async def test_a_caller_that_leaves_takes_its_texts_out(endpoint: Endpoint, way: str) -> None:
    line = Line(endpoint)
    running = line.ask(1)
    await turns()
    caller = asyncio.get_running_loop().create_future()
    gone = line.ask(20, caller=caller)
    stays = line.ask(1)
    await turns()
    assert line.waiting == (21, 210)
    if way == "told":
        caller.set_result(None)
    else:
        gone.cancel()
    await until(gone.done)
    assert line.waiting == (1, 10)
    assert line.admission.tokens == 20
    assert line.figures.given_up == [("disconnect", 20)]
    if way == "told":
        error = refused(gone)
        assert error is not None
        assert error.kind.status == 499
    line.engine.release()
    await running
    await until(lambda: line.engine.texts == 2)
    line.engine.release()
    assert len(await stays) == 1


async def test_a_caller_that_left_before_its_turn_is_not_queued(endpoint: Endpoint) -> None:
    line = Line(endpoint)
    caller = asyncio.get_running_loop().create_future()
    caller.set_result(None)
    task = line.ask(3, caller=caller)
    await until(task.done)
    assert task.exception() is not None
    assert line.engine.texts == 0
    assert line.figures.given_up == [("disconnect", 3)]


async def test_an_answered_request_leaves_nothing_with_its_caller(endpoint: Endpoint) -> None:
    line = Line(endpoint)
    caller = asyncio.get_running_loop().create_future()
    task = line.ask(3, caller=caller)
    await turns()
    line.engine.release()
    assert len(await task) == 3
    caller.set_result(None)
    await turns()
    assert line.figures.given_up == []


async def test_a_hung_engine_turns_new_callers_away_by_and_by(endpoint: Endpoint) -> None:
    """Nothing was ever measured: what is known is for how long it has been silent."""
    line = Line(endpoint)
    line.ask(1)
    await turns()
    waits = line.ask(1)
    await turns()
    assert not waits.done()
    line.queue.dispatch.pace._since -= 2.5
    away = line.ask(1)
    await turns()
    error = refused(away)
    assert error is not None
    assert error.kind.code == "overloaded"
    assert error.retry_after_s == 3
    line.engine.release()


async def test_nobody_watches_by_default() -> None:
    assert Passage({}).caller is None
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    current_caller.set(caller)
    assert Passage({}).caller is caller


async def test_behind_a_handover_a_caller_that_leaves_is_heard_of_too(
    endpoint_fields: dict[str, Any], tokenizer_json: bytes
) -> None:
    """The new bundle's engine is not there: the request is served by the one before it."""
    old, new = (
        Successor(
            json.dumps({**endpoint_fields, "bundle_version": version}).encode(),
            lambda: tokenizer_json,
        )
        for version in (1, 2)
    )
    named = SimpleNamespace(serving_url="handed_over", version=None)
    old.model_endpoint = new.model_endpoint = named
    line = Line(old.endpoint)
    old.own.engine._coalescer = line.queue

    async def is_ready() -> bool:
        return False

    assert old.handover.server() is None
    new.handover._is_ready = is_ready
    assert new.handover.server() is old
    running = line.ask(1)
    await turns()
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    current_caller.set(caller)
    state: dict[str, Any] = {}
    request = new.preprocess({"text": ["a cup", "of tea"]}, state)
    served = asyncio.create_task(new.process(request, state))
    await turns()
    assert line.waiting[0] == 2
    caller.set_result(None)
    await until(served.done)
    assert line.waiting == (0, 0)
    assert line.figures.given_up == [("disconnect", 2)]
    assert new.postprocess(served.result(), state).status_code == 499
    line.engine.release()
    await running


def bundle_with_a_line(
    endpoint_fields: dict[str, Any], tokenizer_json: bytes, name: str
) -> tuple[Successor, Line]:
    made = Successor(json.dumps(endpoint_fields).encode(), lambda: tokenizer_json)
    made.model_endpoint = SimpleNamespace(serving_url=name, version=None)
    line = Line(made.endpoint)
    made.own.engine._coalescer = line.queue
    return made, line


async def test_what_needs_no_engine_does_not_wait_for_it(
    endpoint_fields: dict[str, Any], tokenizer_json: bytes
) -> None:
    made, line = bundle_with_a_line(endpoint_fields, tokenizer_json, "lists tokens")
    running = [line.ask(1), line.ask(1)]
    await turns()
    line.queue.dispatch.pace._since -= 2.5
    body = {"inputs": "a cup"}
    for operation, status in (("tei.tokenize", 200), ("tei.predict", 429)):
        current_operation.set((operation, b""))
        turned_away = made.turned_away(orjson.dumps(body))
        assert (turned_away is None) == (status == 200)
        state: dict[str, Any] = {}
        outcome = await made.process(made.preprocess(body, state), state)
        assert made.postprocess(outcome, state).status_code == status
    line.engine.release()
    await asyncio.gather(*running, return_exceptions=True)


async def test_a_crowd_is_turned_away_before_its_bodies_are_read(
    endpoint_fields: dict[str, Any], tokenizer_json: bytes
) -> None:
    """As the long way would refuse it, with the deadline that the body names."""
    made, line = bundle_with_a_line(endpoint_fields, tokenizer_json, "crowded")
    raw = b'{"text": "a cup"}'
    assert made.turned_away(raw) is None
    assert made.is_idle()
    running = [line.ask(1), line.ask(1)]
    await turns()
    assert not made.is_idle()
    line.queue.dispatch.pace._since -= 2.5
    for body in (
        raw,
        b'{"text": "a cup", "timeout_ms": 1000}',
        b'{"timeout_ms" :2000 , "text":""}',
    ):
        refusal = made.turned_away(body)
        assert refusal is not None
        state: dict[str, Any] = {}
        outcome = await made.process(made.preprocess(orjson.loads(body), state), state)
        long_way = made.postprocess(outcome, state)
        assert (refusal.status_code, refusal.body) == (long_way.status_code, long_way.body)
        assert orjson.loads(refusal.body)["code"] == "overloaded"
        assert refusal.headers["retry-after"] == long_way.headers["retry-after"] == "3"
        assert set(refusal.headers) == set(long_way.headers)
        assert refusal.reach.holds_for(body)
        assert 0 < refusal.reach.seconds <= 0.005
    assert not refusal.reach.holds_for(raw)
    assert refusal.reach.holds_for(b'{"text": "", "timeout_ms": 10}')
    assert made.turned_away(b'{"text": "a cup", "timeout_ms": 9000}') is None
    assert made.turned_away(b'{"text": "%s"}' % (b"a" * 65_536)) is None
    v2 = b'{"inputs": [{"name": "args", "datatype": "BYTES", "shape": [1], "data": ["a"]}]}'
    assert made.turned_away(v2) is None
    reset = current_operation.set(("v2.infer", b""))
    refusal = made.turned_away(v2)
    current_operation.reset(reset)
    assert refusal is not None
    assert orjson.loads(refusal.body).keys() == {"error", "code"}
    line.engine.release()
    await asyncio.gather(*running)
    assert made.turned_away(raw) is None


def refusal_of(admission: Admission, share: Share, tokens: int) -> ServingError | None:
    try:
        admission.enter(share, tokens, lambda: 1.5)
    except ServingError as error:
        return error
    return None


def test_two_requests_of_many_tokens_shut_nobody_out() -> None:
    """Neither those of their own endpoint nor others', whose engines are idle."""
    admission = Admission(400_000, 2.0)
    mine, others = Share(), Share()
    first = admission.enter(mine, 262_144, lambda: 0.0)
    error = refusal_of(admission, mine, 137_000)
    assert error is not None
    assert (error.kind.code, error.got, error.retry_after_s) == ("overloaded", 137_000, 2)
    for share in (mine, others):
        for _ in range(1000):
            admission.enter(share, 50, lambda: 0.0)
    assert admission.tokens == 262_144 + 2 * 50_000
    admission.leave(mine, first)
    assert refusal_of(admission, mine, 137_000) is None


def test_what_is_larger_than_the_limit_leaves_half_of_it() -> None:
    admission = Admission(1000, 2.0)
    taken = admission.enter(Share(), 50_000, lambda: 0.0)
    assert refusal_of(admission, Share(), 15) is None
    admission.leave(Share(many=1000), taken)
    assert admission.tokens == 15


def test_the_largest_request_comes_in_beside_others() -> None:
    """One that needs more room than there is beside anybody; those after it find theirs."""
    admission, mine, others = Admission(400_000, 2.0), Share(), Share()
    small = [admission.enter(mine, 18, lambda: 0.0) for _ in range(8)]
    large = admission.enter(mine, 262_144, lambda: 0.0)
    assert admission.tokens == 262_144 + 8 * 18
    for share in (mine, others, Share()):
        assert refusal_of(admission, share, 50) is None
    # Of the same endpoint no second one, and where others have more than half no first one.
    assert refusal_of(admission, mine, 262_144) is not None
    admission.leave(mine, large)
    for taken in small:
        admission.leave(mine, taken)
    for _ in range(40):
        admission.enter(others, 5_000, lambda: 0.0)
    assert refusal_of(admission, mine, 262_144) is not None


def test_few_of_the_largest_come_in_at_a_time() -> None:
    """However many endpoints ask: memory is what the limit is for."""
    admission = Admission(400_000, 2.0)
    refused = [refusal_of(admission, Share(), 262_144) is not None for _ in range(50)]
    assert refused.count(False) == 2


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4000)), max_size=200))
def test_there_is_always_room_for_an_endpoint_that_has_none(
    coming: list[tuple[int, int]],
) -> None:
    admission, shares = Admission(10_000, 2.0), [Share() for _ in range(5)]
    inside = []
    for place, tokens in coming:
        with contextlib.suppress(ServingError):
            inside.append((place, admission.enter(shares[place], tokens, lambda: 0.0)))
        assert refusal_of(admission, Share(), 1) is None
        # The newcomer of the line before stays: it is none of the five.
        admission.counts.subtract(("tokens", "held"))
    for place, taken in inside:
        admission.leave(shares[place], taken)
    assert shares == [Share()] * 5
    assert admission.counts.keys() <= {"tokens", "held"}
    assert not any(admission.counts.values())


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        (b'{"text": "a"}', Glance(None)),
        (b'{"text": "a", "timeout_ms": 1500}', Glance(1.5)),
        (b'{"parameters": {"timeout_ms":1}}', Glance(0.001)),
        (b'{"text": "\\"timeout_ms\\": 1,"}', Glance(None)),
        (b'{"text": "timeout_ms", "timeout_ms": 5}', None),
        (b'{"text": "timeout_ms"}', None),
        (b'{"timeout_ms": 1, "timeout_ms": 2}', None),
        (b'{"timeout_ms": 0}', None),
        (b'{"timeout_ms": 007}', None),
        (b'{"timeout_ms": 86400001}', None),
        (b'{"timeout_ms": 100000000}', None),
        (b'{"timeout_ms": 1.5}', None),
        (b'{"timeout_ms": "5"}', None),
        (b'{"timeout_ms": null}', None),
        (b'{"parameters": {"timeout": 5}}', None),
    ],
)
def test_a_deadline_is_seen_only_where_it_is_plain(raw: bytes, seen: Glance | None) -> None:
    """Anything else is read the long way, which knows what to say of it."""
    assert glance_at(raw, dialect_is_known=False) == seen
