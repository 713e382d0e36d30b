"""More than an engine can do, in virtual time: what is answered, how late, and by whom.

The engine takes as long as one that sleeps for each text would; nothing else takes time. What the
same looks like on a machine, `python -m benchmarks overload` measures.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from preprocess.passage import Passage
from preprocess.queue.admission import Admission
from preprocess.queue.coalesce import Coalescer
from preprocess.stats import EndpointFigures
from preprocess.tensors import Tensor
from preprocess.tokens import Encoded
from preprocess.triton.client import TritonClient
from preprocess.triton.errors import AwayError
from tests.preprocess import virtual_time
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError

TEXT = Encoded([1] * 18, [0] * 18)
WINDOW_S = 5.0


@pytest.fixture
def endpoint(endpoint_fields: dict[str, Any]) -> Endpoint:
    endpoint_fields["tokens"]["buckets"] = [8, 16, 20, 24, 32]
    endpoint_fields["limits"] |= {
        "max_batch_size": 64, "max_call_tokens": 1024, "max_texts": 512, "max_tokens": 60_000,
    }  # fmt: skip
    return read_endpoint(json.dumps(endpoint_fields))


@dataclass
class Answer:
    """How a request ended: when (seconds since the beginning), after how long, with what."""

    at: float
    took: float
    status: int
    retry_after: int | None = None


@dataclass
class Stage:
    """A queue before an engine of so many texts a second, and who asks it."""

    endpoint: Endpoint
    rate: float
    answers: list[Answer] = field(default_factory=list)
    computed: int = 0
    hangs: bool = False  # the next call

    def __post_init__(self) -> None:
        self.began = time.monotonic()
        self.free = self.began
        admission = Admission(400_000, 2.0)
        self.queue = Coalescer(
            self.endpoint, self.engine, admission, lambda: 2, EndpointFigures("virtual")
        )

    async def engine(self, inputs: list[Tensor], deadline: float) -> Any:
        """One instance: calls one after the other."""
        texts = len(inputs[0].array)
        self.computed += texts
        if self.hangs:
            self.hangs = False
            await asyncio.sleep(100)
        self.free = max(self.free, time.monotonic()) + texts / self.rate
        await asyncio.sleep(self.free - time.monotonic())
        return [np.zeros((texts, 2), np.float32)]

    async def ask(
        self,
        *,
        text: Encoded = TEXT,
        texts: int = 1,
        deadline_s: float | None = None,
        caller: Any = None,
    ) -> Answer:
        sent = time.monotonic()
        passage = Passage({})
        passage.own_deadline, passage.caller = deadline_s is not None, caller
        until = sent + (deadline_s or 30.0)
        retry = None
        try:
            self.queue.check_wait(passage, until)
            (await self.queue.infer([text] * texts, until, passage)).result()
            status = 200
        except ServingError as error:
            status, retry = error.kind.status, error.retry_after_s
        now = time.monotonic()
        self.answers.append(Answer(now - self.began, now - sent, status, retry))
        return self.answers[-1]

    async def offer(
        self,
        times: float,
        seconds: float,
        *,
        deadline_s: float | None,
        leave_s: float | None = None,
    ) -> None:
        """Requests at random moments; returns when the last one was sent."""
        source = random.Random(5)
        self.running: set[asyncio.Task[Any]] = set()
        moment, end = time.monotonic(), time.monotonic() + seconds
        while (moment := moment + source.expovariate(times * self.rate)) < end:
            await asyncio.sleep(moment - time.monotonic())
            work = self.ask(deadline_s=deadline_s) if leave_s is None else self.leaving(leave_s)
            task = asyncio.ensure_future(work)
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def leaving(self, seconds: float) -> None:
        """Asks, and closes its connection when there is no answer by then."""
        loop = asyncio.get_running_loop()
        caller: asyncio.Future[None] = loop.create_future()

        def leave() -> None:
            if not caller.done():
                caller.set_result(None)

        timer = loop.call_later(seconds, leave)
        await self.ask(caller=caller)
        timer.cancel()

    def windows(self, seconds: float) -> list[float]:
        """What was answered with 200 in each window, of what the engine can do."""
        counts = Counter(int(a.at / WINDOW_S) for a in self.answers if a.status == 200)
        whole = int(seconds / WINDOW_S)
        return [counts[at] / (WINDOW_S * self.rate) for at in range(whole)]

    def took(self, status: int) -> list[float]:
        return sorted(answer.took for answer in self.answers if answer.status == status)


@dataclass
class Pair(Stage):
    """The queue before two such engines, which take as long as tokens are many; one that hangs
    keeps its call.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queue.slots = lambda: 4
        self.busy_until = [self.began, self.began]

    async def engine(self, inputs: list[Tensor], deadline: float) -> Any:
        shape = inputs[0].array.shape
        if self.hangs:
            self.hangs = False
            await asyncio.sleep(100)
        at = self.busy_until.index(min(self.busy_until))
        took = shape[0] * shape[1] / (len(TEXT.ids) * self.rate)
        self.busy_until[at] = max(self.busy_until[at], time.monotonic()) + took
        await asyncio.sleep(self.busy_until[at] - time.monotonic())
        return [np.zeros((shape[0], 2), np.float32)]


@dataclass
class SlowCpu(Stage):
    """MiniLM on two cores that others use too: a call takes 20 ms beside 0.4 ms a token."""

    async def engine(self, inputs: list[Tensor], deadline: float) -> Any:
        texts, length = inputs[0].array.shape
        self.free = max(self.free, time.monotonic()) + 0.02 + 0.0004 * texts * length
        await asyncio.sleep(self.free - time.monotonic())
        return [np.zeros((texts, 2), np.float32)]


def test_the_load_test_of_128_clients_is_answered_whole_after_single_texts(
    endpoint: Endpoint,
) -> None:
    """By what single texts took, 128 of them would take 3.5 s, and 2 are allowed."""

    async def play() -> list[Answer]:
        stage = SlowCpu(endpoint, 120)
        for _ in range(30):
            await stage.ask()
        stage.answers.clear()

        async def again() -> None:
            for _ in range(6):
                await stage.ask()

        await asyncio.gather(*(again() for _ in range(128)))
        return stage.answers

    answers = virtual_time.run(play())
    assert {a.status for a in answers} == {200}
    assert max(a.took for a in answers) < 2


# Longer for the slow ones, whose calls are few.
SECONDS = {80: 40.0, 300: 15.0, 800: 10.0}


@pytest.mark.slow
@pytest.mark.parametrize("deadline_s", [None, 2.0])
@pytest.mark.parametrize("rate", SECONDS)
def test_four_times_more_than_it_can_do(
    endpoint: Endpoint, rate: int, deadline_s: float | None
) -> None:
    async def play() -> tuple[Stage, float, Answer]:
        stage = Stage(endpoint, rate)
        await stage.offer(4.0, SECONDS[rate], deadline_s=deadline_s)
        ended = time.monotonic()
        while stage.running:
            await asyncio.wait(stage.running)
        drained = time.monotonic() - ended
        return stage, drained, await stage.ask()

    stage, drained, alone = virtual_time.run(play())
    windows = stage.windows(SECONDS[rate])
    assert min(windows[1:]) >= 0.9, windows
    took = stage.took(200)
    assert took[int(0.99 * len(took))] < 2.5
    assert drained < 3
    assert (alone.status, alone.took) == (200, pytest.approx(1 / rate, rel=0.1))
    # A refusal is immediate, and what it promises is soon.
    assert max(stage.took(503)) == 0
    assert all(1 <= a.retry_after <= 3 for a in stage.answers if a.retry_after)
    if deadline_s is None:
        assert not stage.took(504)
    # Nearly all that is computed is answered in time.
    assert stage.computed <= 1.05 * len(took) + 64


def test_who_comes_back_when_it_was_told_to_is_let_in(endpoint: Endpoint) -> None:
    async def play() -> list[Answer]:
        stage = Stage(endpoint, 300)
        await stage.offer(4.0, 10.0, deadline_s=None)
        asks = [asyncio.ensure_future(stage.ask()) for _ in range(20)]
        await asyncio.sleep(0.01)
        refused = next(task.result() for task in asks if task.done())
        assert refused.retry_after
        await asyncio.sleep(refused.retry_after)
        return [refused, await stage.ask()]

    refused, again = virtual_time.run(play())
    assert (refused.status, again.status) == (503, 200)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1.5, 4.0])
def test_after_callers_that_gave_up_the_next_one_is_soon_answered(
    endpoint: Endpoint, times: float
) -> None:
    async def play() -> tuple[Stage, Answer]:
        stage = Stage(endpoint, 300)
        await stage.offer(times, 15.0, deadline_s=None, leave_s=1.0)
        return stage, await stage.ask()

    stage, following = virtual_time.run(play())
    assert following.took < 2.5
    # Nobody who gave up is left, but for the calls that were sent.
    assert len(stage.queue._waiting) == 0


@pytest.mark.slow
def test_one_with_512_texts_neither_starves_others_nor_starves(endpoint: Endpoint) -> None:
    async def play() -> tuple[Stage, Answer]:
        stage = Stage(endpoint, 300)
        load = asyncio.ensure_future(stage.offer(4.0, 30.0, deadline_s=None))
        await asyncio.sleep(5)
        while (big := await stage.ask(texts=512)).status == 503:
            await asyncio.sleep(0.01)
        await load
        return stage, big

    stage, big = virtual_time.run(play())
    assert big.status == 200
    singles = [a for a in stage.answers if a is not big and a.status == 200]
    meanwhile = [a for a in singles if big.at - big.took <= a.at <= big.at]
    # Its part is a quarter; the others have the rest, less what a call rounds up to.
    assert len(meanwhile) / big.took >= 0.65 * 300
    took = sorted(a.took for a in singles)
    assert took[int(0.99 * len(took))] < 2.5


CALLERS, LEAVE_S, NOTICED_S = 32, 0.02, 0.02


async def beside_leavers(stage: Stage, leavers: str, seconds: float) -> float:
    """Answers a second to callers that stay, beside others that leave after 20 ms."""
    end = time.monotonic() + seconds
    source = random.Random(3)
    running: set[asyncio.Task[Any]] = set()
    stayed = 0

    async def stay() -> None:
        nonlocal stayed
        while time.monotonic() < end:
            answer = await stage.ask()
            stayed += answer.status == 200
            await asyncio.sleep(0.001)

    async def leave() -> None:
        task = asyncio.ensure_future(stage.leaving(LEAVE_S + NOTICED_S))
        running.add(task)
        task.add_done_callback(running.discard)
        await asyncio.sleep(LEAVE_S)

    async def come_again() -> None:
        while time.monotonic() < end:
            await leave()

    async def come_at_random() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(source.expovariate(stage.rate / 2))
            task = asyncio.ensure_future(leave())
            running.add(task)
            task.add_done_callback(running.discard)

    others = {
        "nobody": [],
        "at once": [come_again] * CALLERS,
        "at the others' pace": [come_at_random],
    }
    await asyncio.gather(*(work() for work in [*[stay] * CALLERS, *others[leavers]]))
    await asyncio.gather(*running)
    return stayed / seconds


@pytest.mark.slow
@pytest.mark.parametrize("leavers", ["nobody", "at once", "at the others' pace"])
def test_callers_that_leave_soon_take_little_from_those_that_stay(
    endpoint: Endpoint, leavers: str
) -> None:
    stage_of = []

    async def play() -> float:
        stage_of.append(Stage(endpoint, 300))
        return await beside_leavers(stage_of[0], leavers, 8.0)

    assert virtual_time.run(play()) >= 0.9 * 300
    assert len(stage_of[0].queue._waiting) == 0


def test_a_call_that_hangs_does_not_hold_up_who_may_leave(endpoint: Endpoint) -> None:
    async def play() -> Answer:
        stage = Stage(endpoint, 300)
        await beside_leavers(stage, "at once", 2.0)
        stage.hangs = True
        hanging = asyncio.ensure_future(stage.ask())
        await asyncio.sleep(0.001)
        leaving = [asyncio.ensure_future(stage.leaving(LEAVE_S)) for _ in range(CALLERS)]
        answer = await stage.ask()
        await asyncio.gather(*leaving)
        hanging.cancel()
        return answer

    answer = virtual_time.run(play())
    assert (answer.status, answer.took < 1) == (200, True)


@pytest.mark.parametrize("texts", [1, 3])
def test_a_long_text_on_one_server_ends_nobody_who_has_another(
    endpoint_fields: dict[str, Any], texts: int
) -> None:
    endpoint_fields["tokens"] |= {"buckets": [20, 8192], "max_length": 8192}
    endpoint_fields["limits"] |= {"max_call_tokens": 8192}
    roomy = read_endpoint(json.dumps(endpoint_fields))

    async def play() -> tuple[Answer, list[Answer]]:
        stage = Pair(roomy, 300)
        for _ in range(40):
            await stage.ask()
        long = asyncio.ensure_future(stage.ask(text=Encoded([1] * 8000, [0] * 8000)))
        await asyncio.sleep(0.1)
        others = []
        while not long.done():
            others.append(await stage.ask(texts=texts, deadline_s=0.5))
            await asyncio.sleep(0.1)
        return await long, others

    long, others = virtual_time.run(play())
    assert long.status == 200
    assert len(others) > 5
    assert {answer.status for answer in others} == {200}
    assert max(answer.took for answer in others) < 0.1


def test_a_server_that_hangs_takes_no_more_than_its_own_call(endpoint: Endpoint) -> None:
    """No idle moment beside it is work of the other, which is as fast as it was."""

    async def play() -> tuple[float, float, list[Answer]]:
        stage = Pair(endpoint, 300)
        for _ in range(40):
            await stage.ask()
        before = stage.queue.dispatch.pace.rate
        stage.hangs = True
        hanging = asyncio.ensure_future(stage.ask(deadline_s=1.0))
        late = []
        for _ in range(40):
            await asyncio.sleep(1.5)
            late.append(await stage.ask(deadline_s=1.0))
        crowd = await asyncio.gather(*(stage.ask(deadline_s=1.0) for _ in range(40)))
        late.append(await hanging)
        assert before is not None
        assert stage.queue.dispatch.pace.rate is not None
        return before, stage.queue.dispatch.pace.rate, [*late[:-1], *crowd]

    before, after, answers = virtual_time.run(play())
    assert {answer.status for answer in answers} == {200}
    assert after > 0.8 * before


@pytest.mark.parametrize("pause_s", [0.1, 1.5, 60.0])
def test_a_burst_finds_the_server_beside_one_that_hangs(endpoint: Endpoint, pause_s: float) -> None:
    """No call has overtaken the one that hangs yet, and nobody knows that it does."""

    async def play() -> list[Answer]:
        stage = Pair(endpoint, 300)
        for _ in range(40):
            await stage.ask()
        stage.hangs = True
        hanging = asyncio.ensure_future(stage.ask(deadline_s=0.05))
        await asyncio.sleep(pause_s)
        burst = await asyncio.gather(*(stage.ask() for _ in range(40)))
        await hanging
        return burst

    assert {answer.status for answer in virtual_time.run(play())} == {200}


def test_a_burst_beside_a_call_that_others_have_overtaken_is_let_in(endpoint: Endpoint) -> None:
    """It has a slot, the burst's own call is about to take the other, and nobody asked before."""

    async def play() -> list[Answer]:
        stage = Pair(endpoint, 300)
        stage.queue.slots = lambda: 2
        for _ in range(40):
            await stage.ask()
        stage.hangs = True
        hanging = asyncio.ensure_future(stage.ask(deadline_s=0.05))
        await asyncio.sleep(0.1)
        for _ in range(3):
            await stage.ask()
        bursts = []
        for _ in range(3):
            await asyncio.sleep(5)
            burst = [asyncio.ensure_future(stage.ask())]
            # The others come while its call waits for more.
            await asyncio.sleep(0)
            burst += [asyncio.ensure_future(stage.ask()) for _ in range(7)]
            bursts += await asyncio.gather(*burst)
        await hanging
        return bursts

    assert Counter(answer.status for answer in virtual_time.run(play())) == {200: 24}


def test_what_came_while_the_loop_stood_still_is_let_in(endpoint: Endpoint) -> None:
    """The engine answered meanwhile, which the loop hears after it has begun with who came."""

    async def play() -> list[Answer]:
        stage = Stage(endpoint, 300)
        for _ in range(40):
            await stage.ask()
        busy = [asyncio.ensure_future(stage.ask())]
        while stage.queue.dispatch.pace.calls < 2:
            await asyncio.sleep(0.001)
            busy.append(asyncio.ensure_future(stage.ask()))
        virtual_time.stand_still(10.0)
        came = [asyncio.ensure_future(stage.ask()) for _ in range(50)]
        return await asyncio.gather(*busy, *came)

    assert {answer.status for answer in virtual_time.run(play())} == {200}


@pytest.mark.parametrize("turn_s", [0.0, 0.15, 0.5])
def test_a_server_that_is_silent_turns_callers_away_also_where_the_loop_is_slow(
    endpoint: Endpoint, turn_s: float
) -> None:
    async def play() -> list[Answer]:
        stage = Pair(endpoint, 300)
        stage.queue.slots = lambda: 1
        for _ in range(40):
            await stage.ask()
        stage.hangs = True
        hanging = asyncio.ensure_future(stage.ask())
        began = time.monotonic()
        while time.monotonic() < began + (5.0 if turn_s > 0.2 else 1.8):
            virtual_time.stand_still(turn_s)
            await asyncio.sleep(0.001)
        refused = await stage.ask()
        await hanging
        return [refused]

    assert [answer.status for answer in virtual_time.run(play())] == [503]


def test_where_every_slot_is_of_calls_that_hang_a_refusal_is_immediate(endpoint: Endpoint) -> None:
    async def play() -> list[Answer]:
        stage = Pair(endpoint, 300)
        for _ in range(40):
            await stage.ask()
        hanging = []
        for _ in range(2):
            stage.hangs = True
            hanging.append(asyncio.ensure_future(stage.ask(deadline_s=0.05)))
            await asyncio.sleep(0.1)
        for _ in range(3):
            await stage.ask()
        # The other server goes, and two calls are all that this one may have.
        stage.queue.slots = lambda: 2
        waits = asyncio.ensure_future(stage.ask(deadline_s=10.0))
        await asyncio.sleep(5)
        refused = [await stage.ask(deadline_s=2.0), await stage.ask()]
        await asyncio.gather(*hanging, waits)
        return refused

    answers = virtual_time.run(play())
    assert [(answer.status, answer.took) for answer in answers] == [(503, 0.0), (503, 0.0)]


class Playing:
    """A server by its address: ":1" hangs from the fifth second on, ":2" is away for three."""

    began = 0.0

    def __init__(self, address: str) -> None:
        self._first = address.endswith(":1")

    def _now(self) -> float:
        return time.monotonic() - Playing.began

    async def is_live(self) -> bool:
        if self._first and self._now() >= 5:
            await asyncio.sleep(10**6)
        if not self._first and 10 <= self._now() < 13:
            raise AwayError("it is away", whole=True, begun=False)
        return True

    async def is_ready(self, model: str, version: int) -> bool:
        return await self.is_live()

    async def infer(self, model: str, version: int, inputs: Any, outputs: Any) -> list[Any]:
        await self.is_live()
        await asyncio.sleep(0.01)
        return [np.zeros((len(inputs[0].array), 2), np.float32)]

    def close(self) -> None:
        return


def test_a_server_that_is_back_is_found_while_all_calls_hang_on_the_other(
    endpoint: Endpoint,
) -> None:
    async def play() -> list[tuple[float, int]]:
        Playing.began = time.monotonic()
        client = TritonClient("127.0.0.1:1,127.0.0.1:2", Playing)

        async def call(inputs: list[Tensor], deadline: float) -> list[Any]:
            return await client.infer("m", 1, inputs, (), deadline, 2)

        stage = Stage(endpoint, 300)
        stage.queue = queue = Coalescer(
            endpoint,
            call,
            Admission(400_000, 2.0),
            lambda: client.slots("m", 1, 2),
            EndpointFigures("e"),
        )
        client.queues.add(queue)
        await stage.offer(0.1, 20.0, deadline_s=2.0)
        # What waits when it is back is answered, though nobody comes any more.
        await asyncio.gather(*stage.running)
        return [(answer.at, answer.status) for answer in stage.answers]

    answers = virtual_time.run(play())
    assert 503 in {status for at, status in answers if 10 < at < 13}
    assert {status for at, status in answers if at > 14} == {200}
