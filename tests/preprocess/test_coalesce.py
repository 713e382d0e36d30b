"""The coalescer against an engine that is a function: who gets which row, and what fails."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import uvloop

from preprocess.passage import Passage
from preprocess.queue.admission import Admission, Share
from preprocess.queue.coalesce import Coalescer
from preprocess.stats import DEADLINE, DISCONNECT, EndpointFigures
from preprocess.tensors import Tensor
from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError, too_late
from transformer_serving.contract.worker.request_context import GoldenBody, MirroredBody

BAD = 666


@pytest.fixture
def endpoint(endpoint_json: str) -> Endpoint:
    return read_endpoint(endpoint_json)


def text(first: int, length: int = 3) -> Encoded:
    return Encoded([first] * length, [0] * length)


class SumEngine:
    """Answers [sum of ids, tokens] a row; refuses a call that holds a BAD id."""

    def __init__(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        self.calls: list[tuple[int, int]] = []
        self.running = 0
        self.most = 0
        self._before = before

    async def __call__(self, inputs: list[Tensor], deadline: float) -> Any:
        ids, _, mask = (tensor.array for tensor in inputs)
        self.calls.append((ids.shape[0], ids.shape[1]))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await (self._before() if self._before else asyncio.sleep(0.001))
        finally:
            self.running -= 1
        if (ids == BAD).any():
            raise ServingError("engine_failed", "the engine failed on this input")
        return [np.stack([ids.sum(axis=1), mask.sum(axis=1)], axis=1).astype(np.float32)]


def waiting_for(release: asyncio.Event) -> SumEngine:
    """An engine that answers when that is set."""
    return SumEngine(lambda: release.wait())  # type: ignore[arg-type,return-value]


def given_up(queue: Coalescer, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What the queue counts as given up from now on: the reason, and how many texts."""
    counted: list[tuple[str, int]] = []
    monkeypatch.setattr(queue.figures, "abandoned", lambda *given: counted.append(given))
    return counted


def coalescer(endpoint: Endpoint, engine: Any, *, limit: int = 10**6, slots: int = 2) -> Coalescer:
    return Coalescer(
        endpoint, engine, Admission(limit, 2.0), lambda: slots, EndpointFigures("test")
    )


async def infer(
    queue: Coalescer, texts: list[Encoded], deadline: float, asker: Passage | None = None
) -> Any:
    return (await queue.infer(texts, deadline, asker or Passage({}))).result()


def soon() -> float:
    return time.monotonic() + 30


async def test_every_request_gets_its_own_rows(endpoint: Endpoint) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")  # noqa: T201
    source = random.Random(seed)
    engine = SumEngine()
    queue = coalescer(endpoint, engine)

    sent: list[int] = []

    async def one_request() -> None:
        await asyncio.sleep(source.random() * 0.05)
        texts = [
            text(BAD if source.random() < 0.01 else source.randrange(1, 500), source.randint(1, 32))
            for _ in range(source.choice([1, 1, 1, 2, 5, 30]))
        ]
        sent.append(len(texts))
        if any(BAD in one.ids for one in texts):
            with pytest.raises(ServingError, match="failed on this input"):
                await infer(queue, texts, soon())
            return
        rows = await infer(queue, texts, soon())
        assert [row.tolist() for (row,) in rows] == [[sum(one.ids), len(one.ids)] for one in texts]

    await asyncio.gather(*(one_request() for _ in range(1500)))
    assert len(engine.calls) < sum(sent) / 2  # they were joined
    assert engine.most <= 2
    assert queue.admission.tokens == 0
    assert len(queue._waiting) == 0
    async with asyncio.timeout(60):
        while queue._tasks:
            await asyncio.sleep(0.001)
    assert queue._in_flight == 0


async def test_one_bad_text_costs_log2_calls(endpoint: Endpoint) -> None:
    engine = SumEngine()
    queue = coalescer(endpoint, engine, slots=1)
    requests = [infer(queue, [text(BAD if at == 5 else at + 1)], soon()) for at in range(8)]
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    failed = [at for at, outcome in enumerate(outcomes) if isinstance(outcome, ServingError)]
    assert failed == [5]
    # The joined call, three halvings, the one text alone, and the rest together.
    assert len(engine.calls) <= 6


async def test_an_idle_engine_is_called_at_once_and_arrivals_join(endpoint: Endpoint) -> None:
    engine = SumEngine()
    queue = coalescer(endpoint, engine, slots=1)
    await asyncio.gather(*(infer(queue, [text(at + 1)], soon()) for at in range(8)))
    assert engine.calls == [(8, 8)]


async def test_who_comes_behind_the_last_answer_finds_the_engine_free(endpoint: Endpoint) -> None:
    queue = coalescer(endpoint, SumEngine(), slots=1)
    # Else whoever is alone in the worker has room.
    queue.admission.enter(Share(), 10, lambda: 0.0)
    await infer(queue, [text(1)], soon())
    assert queue.has_room()


async def test_lengths_do_not_mix_across_far_buckets(endpoint: Endpoint) -> None:
    engine = SumEngine()
    queue = coalescer(endpoint, engine, slots=1)
    await asyncio.gather(*(infer(queue, [text(1, size)], soon()) for size in (3, 30, 2, 31)))
    assert sorted(engine.calls) == [(2, 8), (2, 32)]


async def test_a_late_request_leaves_and_the_call_goes_on(endpoint: Endpoint) -> None:
    release = asyncio.Event()
    engine = waiting_for(release)
    queue = coalescer(endpoint, engine, slots=1)
    patient = asyncio.create_task(infer(queue, [text(4)], soon()))
    hasty = asyncio.create_task(infer(queue, [text(5)], time.monotonic() + 0.02))
    with pytest.raises(ServingError) as caught:
        await hasty
    assert caught.value.kind.status == 504
    assert queue._in_flight == 1  # Triton still works on it: the slot is held
    release.set()
    assert (await patient)[0][0].tolist() == [12, 3]


async def test_too_many_waiting_tokens_are_refused(endpoint: Endpoint) -> None:
    release = asyncio.Event()
    engine = waiting_for(release)
    queue = coalescer(endpoint, engine, limit=10)
    big = asyncio.create_task(infer(queue, [text(1, 32)], soon()))  # an idle worker takes it
    await asyncio.sleep(0)
    with pytest.raises(ServingError) as caught:
        await infer(queue, [text(1)], soon())
    assert (caught.value.kind.status, caught.value.kind.retry_after_s) == (503, 1)
    release.set()
    await big
    assert queue.admission.tokens == 0


async def test_a_fault_of_ours_reaches_everyone_who_waits(endpoint: Endpoint) -> None:
    async def broken(inputs: list[Tensor], deadline: float) -> Any:
        raise ZeroDivisionError

    queue = coalescer(endpoint, broken)
    outcomes = await asyncio.gather(
        *(infer(queue, [text(1)], soon()) for _ in range(3)), return_exceptions=True
    )
    assert all(isinstance(outcome, ZeroDivisionError) for outcome in outcomes)


async def test_a_call_that_the_engine_owes_is_not_told_as_the_callers_deadline(
    endpoint: Endpoint,
) -> None:
    """A caller may have a day."""

    async def late(inputs: list[Tensor], deadline: float) -> Any:
        raise too_late()

    with pytest.raises(ServingError, match="the engine did not answer a call within 300 s") as told:
        await infer(coalescer(endpoint, late), [text(1)], time.monotonic() + 86_400)
    assert told.value.kind.code == "deadline"


async def test_a_golden_request_larger_than_the_limit_passes_a_full_worker(
    endpoint: Endpoint,
) -> None:
    """It is neither refused nor counted, so that it turns no caller away either."""
    release = asyncio.Event()
    engine = waiting_for(release)
    queue = coalescer(endpoint, engine, limit=10, slots=1)
    golden = Passage(GoldenBody())
    checks = [asyncio.create_task(infer(queue, [text(2, 32)], soon(), golden)) for _ in range(2)]
    await asyncio.sleep(0)
    assert queue.admission.tokens == 0
    caller = asyncio.create_task(infer(queue, [text(1, 10)], soon()))
    await asyncio.sleep(0)
    assert queue.admission.tokens == 10
    with pytest.raises(ServingError):
        await infer(queue, [text(1)], soon())
    checks.append(asyncio.create_task(infer(queue, [text(3, 32)], soon(), golden)))
    await asyncio.sleep(0)
    release.set()
    assert (await caller)[0][0].tolist() == [10, 10]
    assert [rows[0][0].tolist()[0] for rows in await asyncio.gather(*checks)] == [64, 64, 96]


async def test_a_golden_text_in_a_callers_call_is_not_counted(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = SumEngine()
    queue = coalescer(endpoint, engine, slots=1)
    counted: list[tuple[int, int, int]] = []
    monkeypatch.setattr(queue.figures, "call", lambda *call: counted.append(call))
    golden = Passage(GoldenBody())
    await asyncio.gather(
        infer(queue, [text(2, 7)], soon(), golden), infer(queue, [text(3, 6)], soon())
    )
    await infer(queue, [text(2, 7)], soon(), golden)
    assert engine.calls == [(2, 8), (1, 8)]
    # Texts, tokens and padding of the caller's alone.
    assert counted == [(1, 6, 2)]


class NotedEngine(SumEngine):
    """Notes the first id of each text of a call; the first call takes until `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.released = asyncio.Event()
        self.firsts: list[list[int]] = []

    async def __call__(self, inputs: list[Tensor], deadline: float) -> Any:
        self.firsts.append(inputs[0].array[:, 0].tolist())
        if len(self.firsts) == 1:
            await self.released.wait()
        return await super().__call__(inputs, deadline)

    async def begin(self, queue: Coalescer) -> asyncio.Task[Any]:
        """The request of the first call, which runs now."""
        request = asyncio.create_task(infer(queue, [text(1)], soon()))
        async with asyncio.timeout(20):
            while not self.firsts:
                await asyncio.sleep(0)
        return request


async def test_a_health_check_is_in_the_next_call_and_a_mirrored_request_waits_its_turn(
    endpoint: Endpoint,
) -> None:
    """A busy endpoint that is well must not be taken for one that does not answer."""
    engine = NotedEngine()
    queue = coalescer(endpoint, engine, slots=1)
    asked = [await engine.begin(queue)]
    asked += [asyncio.create_task(infer(queue, [text(2)], soon())) for _ in range(40)]
    for first, body in ((3, MirroredBody()), (4, GoldenBody())):
        await asyncio.sleep(0)
        two = [text(first), text(first)]
        asked.append(asyncio.create_task(infer(queue, two, soon(), Passage(body))))
    await asyncio.sleep(0)
    engine.released.set()
    await asyncio.gather(*asked)
    order = [first for call in engine.firsts for first in call]
    assert order == [1, 4, 4, *[2] * 40, 3, 3]
    assert (queue._waiting.tokens, queue._waiting.due_tokens) == (0, 0)


async def test_a_health_check_does_not_wait_until_its_caller_is_likely_to_stay(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = NotedEngine()
    queue = coalescer(endpoint, engine, slots=2)
    running = await engine.begin(queue)
    monkeypatch.setattr(queue.dispatch.impatience, "young_s", lambda now: 60.0)
    monkeypatch.setattr(queue.dispatch.pace, "wait_s", lambda tokens, now, calls, free=False: 90.0)
    young = asyncio.create_task(infer(queue, [text(2)], soon()))
    await asyncio.sleep(0)
    await infer(queue, [text(4)], soon(), Passage(GoldenBody()))
    assert engine.firsts == [[1], [4]]
    assert not young.done()
    monkeypatch.undo()
    engine.released.set()
    await asyncio.gather(running, young)


async def test_an_engine_that_hangs_holds_no_texts_of_those_who_gave_up(
    endpoint: Endpoint,
) -> None:
    release = asyncio.Event()
    engine = waiting_for(release)
    queue = coalescer(endpoint, engine, slots=1)
    patient = [asyncio.create_task(infer(queue, [text(at)], soon())) for at in range(1, 21)]
    await asyncio.sleep(0.01)
    for _ in range(30):
        hasty = [infer(queue, [text(9, size)], time.monotonic()) for size in (1, 10, 20, 30)]
        await asyncio.gather(*hasty, return_exceptions=True)
        assert len(queue._waiting) < 50
    release.set()
    rows = await asyncio.gather(*patient)
    assert [one[0][0].tolist() for one in rows] == [[3 * at, 3] for at in range(1, 21)]


def test_a_wait_of_less_than_a_millisecond_is_one_on_the_loop_that_serves(
    endpoint: Endpoint,
) -> None:
    """uvloop, whose timers are of whole milliseconds: such a wait is none of its timers."""

    async def serve() -> list[Any]:
        engine_may_end, holds = asyncio.Event(), [0.0003, 0.0004, 0.0002]

        async def held() -> None:
            await engine_may_end.wait()

        queue = coalescer(endpoint, SumEngine(held))
        first = asyncio.create_task(infer(queue, [text(1)], soon()))
        while not queue.dispatch.pace.in_flight:
            await asyncio.sleep(0)
        queue.dispatch.hold_s = lambda now: holds.pop(0) if holds else 0.0  # type: ignore[method-assign]
        others = [asyncio.create_task(infer(queue, [text(n)], soon())) for n in (2, 3, 4)]
        while holds:
            await asyncio.sleep(0)
        engine_may_end.set()
        return await asyncio.gather(first, *others)

    answers = uvloop.run(serve())
    assert [rows[0][0][0] for rows in answers] == [3, 6, 9, 12]


async def test_an_engine_that_fails_on_everything_is_not_asked_without_end(
    endpoint: Endpoint,
) -> None:
    engine = SumEngine()
    queue = coalescer(endpoint, engine, slots=1)
    requests = [infer(queue, [text(BAD)], soon()) for _ in range(8)]
    outcomes = await asyncio.gather(*requests, return_exceptions=True)
    assert all(isinstance(outcome, ServingError) for outcome in outcomes)
    assert len(engine.calls) < 3 * 8


async def test_another_number_of_rows_is_the_engines_fault(endpoint: Endpoint) -> None:
    async def fewer(inputs: list[Tensor], deadline: float) -> Any:
        return [np.zeros((len(inputs[0].array) - 1, 2), np.float32)]

    with pytest.raises(ServingError, match="another number of texts"):
        await infer(coalescer(endpoint, fewer), [text(1), text(2)], soon())


async def test_fewer_calls_run_when_there_are_fewer_slots(endpoint: Endpoint) -> None:
    engine = SumEngine()
    slots = [4]
    queue = Coalescer(
        endpoint, engine, Admission(10**6, 2.0), lambda: slots[0], EndpointFigures("test")
    )
    requests = [asyncio.create_task(infer(queue, [text(at)] * 8, soon())) for at in range(1, 41)]
    while engine.most < 4:
        await asyncio.sleep(0)
    slots[0] = 1
    before = len(engine.calls)
    while engine.running > 1:
        await asyncio.sleep(0)
    engine.most = 0
    await asyncio.gather(*requests)
    assert (engine.most, len(engine.calls) > before) == (1, True)


@pytest.mark.parametrize(("body", "counted"), [({}, [(DEADLINE, 0)]), (GoldenBody(), [])])
async def test_a_golden_request_that_is_given_up_is_not_counted(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, body: Any, counted: list[Any]
) -> None:
    """It is no caller's: an endpoint that hangs is asked again and again."""
    release = asyncio.Event()
    engine = waiting_for(release)
    queue = coalescer(endpoint, engine)
    abandoned = given_up(queue, monkeypatch)
    with pytest.raises(ServingError, match="deadline|in time"):
        await infer(queue, [text(1)], time.monotonic() + 0.01, Passage(body))
    assert abandoned == counted
    release.set()


@pytest.mark.parametrize("busy", [False, True])
async def test_what_comes_behind_its_deadline_is_given_up_before_any_queue(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    release = asyncio.Event()
    engine = waiting_for(release)
    queue = coalescer(endpoint, engine, slots=1)
    others = [asyncio.create_task(infer(queue, [text(1)], soon())) for _ in range(2 * busy)]
    while len(engine.calls) < busy:
        await asyncio.sleep(0)
    assert queue.has_room() != busy
    abandoned = given_up(queue, monkeypatch)
    with pytest.raises(ServingError) as caught:
        await infer(queue, [text(1)], time.monotonic() - 1)
    assert caught.value.kind.code == "deadline"
    assert abandoned == [(DEADLINE, 0)]
    release.set()
    await asyncio.gather(*others)


async def test_a_request_of_several_calls_has_left_with_the_first(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waited is until then, and the rest its engine's."""
    times: list[float] = []

    async def later() -> None:
        times.append(time.monotonic())
        await asyncio.sleep(0.01)

    engine = SumEngine(later)
    stay = await coalescer(endpoint, engine, slots=1).infer([text(4)] * 20, soon(), Sealed())
    assert len(engine.calls) > 1
    assert stay.came <= stay.left <= times[0] < times[-1] <= stay.answered


async def test_of_two_looks_to_come_the_earlier_one_stays_and_no_other(endpoint: Endpoint) -> None:
    queue = coalescer(endpoint, SumEngine())
    looks: list[int] = []
    queue.wake = lambda: looks.append(1)  # type: ignore[method-assign]
    queue._wake_later(60.0)
    far = queue._timer
    queue._wake_later(0.02)
    near = queue._timer
    queue._wake_later(60.0)
    assert queue._timer is near
    assert far is not None
    assert far.cancelled()
    async with asyncio.timeout(20):
        while not looks:
            await asyncio.sleep(0.005)
    assert (looks, queue._timer) == ([1], None)


async def test_a_second_call_that_would_only_wait_behind_the_first_is_held_once_more(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its beginning and its leaving what runs may have become what it waits behind."""
    engine = NotedEngine()
    queue = coalescer(endpoint, engine, slots=2)
    running = await engine.begin(queue)
    asked: list[float] = []

    def hold_s(now: float) -> float:
        asked.append(now)
        return 0.0 if len(asked) == 1 else 60.0

    monkeypatch.setattr(queue.dispatch, "hold_s", hold_s)
    held = asyncio.create_task(infer(queue, [text(2)], soon()))
    async with asyncio.timeout(20):
        while len(asked) < 3:
            await asyncio.sleep(0)
    assert engine.firsts == [[1]]
    engine.released.set()
    await asyncio.gather(running, held)
    assert engine.firsts == [[1], [2]]


@dataclass(frozen=True)
class Sealed:
    """An asker of whom nobody can write anything."""

    golden: bool = False
    goes_first: bool = False
    texts: int = 1
    own_deadline: bool = False
    caller: asyncio.Future[None] | None = None
    trace: None = None


async def test_a_stay_has_its_times_in_order(endpoint: Endpoint) -> None:
    queue = coalescer(endpoint, SumEngine())
    before = time.monotonic()
    stay = await queue.infer([text(4), text(5, 9)], soon(), Sealed())
    assert [row[0].tolist() for row in stay.result()] == [[12, 3], [45, 9]]
    assert stay.tokens == 12
    assert before <= stay.came <= stay.left <= stay.answered <= time.monotonic()


async def test_a_stay_that_failed_has_its_times_as_far_as_it_came(endpoint: Endpoint) -> None:
    release = asyncio.Event()
    engine = waiting_for(release)
    queue = coalescer(endpoint, engine, limit=200, slots=1)
    running = asyncio.create_task(queue.infer([text(4)], time.monotonic() + 0.05, Sealed()))
    async with asyncio.timeout(20):
        while not engine.running:
            await asyncio.sleep(0)
    many = [text(5, 32)] * 2
    waiting = asyncio.create_task(queue.infer(many, time.monotonic() + 0.05, Sealed()))
    await asyncio.sleep(0)
    refused = await queue.infer([text(1, 32)] * 7, soon(), Sealed())
    ended = {"running": await running, "waiting": await waiting, "refused": refused}
    codes = {
        name: stay.error.kind.code
        for name, stay in ended.items()
        if isinstance(stay.error, ServingError)
    }
    assert codes == {"running": "deadline", "waiting": "deadline", "refused": "overloaded"}
    assert [name for name, stay in ended.items() if stay.left] == ["running"]
    assert not any(stay.answered or stay.rows for stay in ended.values())
    assert refused.tokens == 7 * 32
    release.set()


@pytest.mark.parametrize("before", [False, True], ids=["waiting", "before"])
@pytest.mark.parametrize("by_worker", [False, True], ids=["caller", "worker"])
async def test_a_worker_that_leaves_is_no_caller_that_does(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, before: bool, by_worker: bool
) -> None:
    release = asyncio.Event()
    engine = waiting_for(release)
    queue = coalescer(endpoint, engine)
    abandoned = given_up(queue, monkeypatch)
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leave() -> None:
        if by_worker:
            caller.set_exception(ConnectionAbortedError())
        else:
            caller.set_result(None)

    if before:
        leave()
    asking = asyncio.create_task(queue.infer([text(4)], soon(), Sealed(caller=caller)))
    if not before:
        async with asyncio.timeout(20):
            while not engine.running:
                await asyncio.sleep(0)
        leave()
    stay = await asking
    release.set()
    assert isinstance(stay.error, ServingError)
    assert stay.error.kind.code == ("unavailable" if by_worker else "left")
    assert abandoned == ([] if by_worker else [(DISCONNECT, 1)])


async def test_a_caller_that_leaves_once_it_was_answered_is_not_impatient(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = coalescer(endpoint, SumEngine())
    left: list[float] = []
    monkeypatch.setattr(queue.dispatch.impatience, "left", lambda age_s, now: left.append(age_s))
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    stay = await queue.infer([text(4)], soon(), Sealed(caller=caller))
    assert len(stay.result()) == 1
    caller.set_result(None)
    await asyncio.sleep(0)
    assert left == []


async def test_a_request_without_texts_asks_nobody(endpoint: Endpoint) -> None:
    engine = SumEngine()
    async with asyncio.timeout(20):
        stay = await coalescer(endpoint, engine).infer([], soon(), Sealed(texts=0))
    assert stay.result() == []
    assert engine.calls == []
