"""The mirror's limits on virtual time, and what it notes: nobody's answer waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as some
from starlette.responses import Response

from tests.gateway.played_host import Processor, host_of
from tests.preprocess.virtual_time import run
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.contract.rollout import NEW, OLD, Allowed, Arms, Plan
from transformer_serving.contract.worker.request_context import (
    current_arrival,
    current_caller,
    mirrored_body,
)
from transformer_serving.gateway.asked import Asked
from transformer_serving.gateway.front_door import FrontDoor
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.rollout.mirror import (
    MIRRORS,
    MOST_ANSWER,
    MOST_BODY,
    Mirror,
    Mirroring,
)
from transformer_serving.gateway.settings import read_settings
from transformer_serving.gateway.short_way import Kind

OLD_BUNDLE, CANDIDATE = "7", "8"
SHARE = 0.25


class Answer(Response):
    def __init__(self, label: str, bundle: str, status: int = 200) -> None:
        super().__init__(b"{}", status, {VERSION_HEADER: bundle})
        self.label = label

    def gist(self) -> Any:
        return ("words", [self.label])


class Bundle:
    """A Preprocess that takes `seconds` to answer with its label; `waits` says that texts do."""

    serves_responses = True

    def __init__(self, bundle: str, label: str = "A", seconds: float = 0.1) -> None:
        self.bundle = bundle
        self.label = label
        self.seconds = seconds
        self.status = 200
        self.waits = False
        self.asked: list[Any] = []
        self.callers: list[Any] = []
        self.running = self.most = 0

    def is_idle(self) -> bool:
        return not self.waits

    def preprocess(self, body: Any, state: Any, collect: Any = None) -> Any:
        self.asked.append(body)
        self.callers.append((current_caller.get(), current_arrival.get()))
        return body

    async def process(self, request: Any, state: Any, collect: Any = None) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.seconds)
        self.running -= 1
        return request

    def postprocess(self, outcome: Any, state: Any, collect: Any = None) -> Any:
        return Answer(self.label, self.bundle, self.status)


class Worker:
    def __init__(self, *, shadow: bool = False) -> None:
        self.old, self.new = Bundle(OLD_BUNDLE), Bundle(CANDIDATE)
        self.processor = processor = Processor({"texts": None, "texts/8": None})
        processor.built("texts", self.old)
        processor.built("texts/8", self.new)
        self.mirror = Mirror("a1", "texts/8", CANDIDATE, SHARE, 0.99, asks_both=shadow)
        self.mirroring = Mirroring(lambda: processor, {"texts": self.mirror})

    def answered(self, answer: Any = None, *, name: str = "texts", held: int = 20) -> None:
        asked = Asked(Kind.OURS, RequestedEndpoint(name, None), {"text": "a cup"})
        self.mirroring.offer(asked, answer or Answer("A", OLD_BUNDLE), held)

    def counted(self) -> Arms:
        arms: Arms = {}
        self.mirror.count(arms)
        return arms


def test_an_answer_of_the_old_bundle_is_asked_of_the_candidate_too() -> None:
    async def main() -> None:
        worker = Worker()
        current_caller.set(asyncio.get_running_loop().create_future())
        current_arrival.set(1.0)
        worker.answered()
        # Nothing of it has run when the answer's own way goes on.
        assert worker.new.asked == []
        await asyncio.sleep(1)
        assert worker.new.asked == [{"text": "a cup"}]
        assert worker.new.asked[0].is_golden
        assert worker.new.callers == [(None, None)]
        assert worker.old.asked == []
        worker.new.label = "B"
        worker.answered()
        await asyncio.sleep(1)
        new = worker.counted()[NEW]
        assert (new.compared, new.differ, new.left_out, new.requests) == (2, 1, 0, 0)
        assert worker.counted()[NEW].compared == 0

    run(main())


@pytest.mark.parametrize("which", ["old", "new"])
def test_it_stops_while_anything_waits(which: str) -> None:
    async def main() -> None:
        worker = Worker()
        getattr(worker, which).waits = True
        for _ in range(5):
            worker.answered()
            await asyncio.sleep(1)
        assert worker.new.asked == []
        assert worker.counted()[NEW].left_out == 5
        getattr(worker, which).waits = False
        worker.answered()
        await asyncio.sleep(1)
        assert len(worker.new.asked) == 1

    run(main())


def test_one_that_begins_to_wait_before_it_was_asked_is_left_out() -> None:
    async def main() -> None:
        worker = Worker()
        worker.answered()
        worker.old.waits = True
        await asyncio.sleep(1)
        assert worker.new.asked == []
        assert worker.counted()[NEW].left_out == 1

    run(main())


def test_what_is_none_of_it_is_not_asked_and_not_counted() -> None:
    async def main() -> None:
        worker = Worker()
        worker.answered(Answer("A", CANDIDATE))
        worker.answered(Answer("A", OLD_BUNDLE, 400))
        worker.answered(name="other")
        await asyncio.sleep(1)
        assert worker.new.asked == []
        assert worker.counted()[NEW].left_out == 0

    run(main())


def other_bundle(worker: Worker) -> None:
    worker.new.bundle = "9"
    worker.answered()


def fault_of_ours(worker: Worker) -> None:
    def postprocess(*_: Any) -> Any:
        raise KeyError("x")

    worker.new.postprocess = postprocess  # type: ignore[method-assign,assignment]
    worker.answered()


@pytest.mark.parametrize(
    "leave_out",
    [
        lambda worker: worker.answered(held=MOST_BODY + 1),
        lambda worker: worker.answered(long_answer()),
        lambda worker: worker.answered(Response(b"{}", 200, {VERSION_HEADER: OLD_BUNDLE})),
        other_bundle,
        fault_of_ours,
    ],
    ids=["long body", "long answer", "older code", "another bundle answers", "a fault of ours"],
)
def test_what_cannot_be_compared_is_left_out(leave_out: Callable[[Worker], None]) -> None:
    async def main() -> None:
        worker = Worker()
        leave_out(worker)
        await asyncio.sleep(1)
        new = worker.counted()[NEW]
        assert (new.compared, new.left_out) == (0, 1)

    run(main())


def long_answer() -> Answer:
    answer = Answer("A", OLD_BUNDLE)
    answer.body = b" " * (MOST_ANSWER + 1)
    return answer


def test_an_error_of_the_candidate_is_no_other_answer() -> None:
    async def main() -> None:
        worker = Worker()
        worker.new.status = 502
        worker.answered()
        await asyncio.sleep(1)
        new = worker.counted()[NEW]
        assert (new.compared, new.differ, new.requests) == (0, 0, 0)

    run(main())


def test_in_a_shadow_both_are_asked_and_timed() -> None:
    async def main() -> None:
        worker = Worker(shadow=True)
        worker.new.status, worker.new.seconds = 502, 0.3
        worker.answered()
        await asyncio.sleep(2)
        arms = worker.counted()
        assert (arms[OLD].requests, arms[OLD].errors) == (1, 0)
        assert (arms[NEW].requests, arms[NEW].errors) == (1, 1)

    run(main())


@pytest.mark.parametrize("fails", [False, True])
def test_it_is_counted_by_the_host_while_it_runs(fails: bool) -> None:
    """What works on a request takes it out of that count meanwhile, of which it knows no other."""

    async def main() -> None:
        worker = Worker()
        if fails:
            fault_of_ours(worker)
        else:
            worker.answered()
        count = worker.processor._request_processing_state
        await asyncio.sleep(0.05)
        assert (worker.new.running, count.value) == (1, 1)
        await asyncio.sleep(1)
        assert (worker.new.running, count.value) == (0, 0)

    run(main())


def test_it_ends_with_the_worker() -> None:
    async def main() -> None:
        worker = Worker()
        worker.answered()
        await asyncio.sleep(0.01)
        worker.mirroring.stop()
        await asyncio.sleep(1)
        assert worker.counted()[NEW].compared == 0
        assert not worker.mirroring.mirrors

    run(main())


@settings(max_examples=40, deadline=None)
@given(
    some.lists(some.tuples(some.floats(0, 0.4), some.booleans()), min_size=1, max_size=60),
    some.floats(0.001, 2),
)
def test_it_takes_no_more_than_its_share_and_one_at_a_time(
    arrivals: list[tuple[float, bool]], seconds: float
) -> None:
    async def main() -> None:
        worker = Worker()
        worker.new.seconds = seconds
        begun = time.monotonic()
        for gap, waits in arrivals:
            await asyncio.sleep(gap)
            worker.old.waits = waits
            before = len(worker.new.asked)
            worker.answered()
            await asyncio.sleep(0)
            assert not waits or len(worker.new.asked) == before
        took = len(worker.new.asked) * seconds
        await asyncio.sleep(seconds)
        # The last one's share is paid for after it.
        allowed = SHARE * (time.monotonic() - begun) + (1 - SHARE) * seconds
        assert took <= allowed + 1e-6
        assert worker.new.most <= 1
        new = worker.counted()[NEW]
        assert new.compared + new.left_out == len(arrivals)

    run(main())


def test_it_is_of_what_the_plan_says() -> None:
    plan = Plan(
        "a1", "texts", 8, "new", "old", (100.0,), 60.0, Allowed(cosine=0.5), mirror=SHARE,
        shadow=True,
    )  # fmt: skip
    assert Mirror.of(plan) == Mirror("a1", "texts/8", CANDIDATE, SHARE, 0.5, asks_both=True)


def pointing(bundle: str, *vector: float) -> Answer:
    answer = Answer("A", bundle)
    answer.gist = lambda: ("directions", np.array([vector]))  # type: ignore[method-assign]
    return answer


@pytest.mark.parametrize(("cosine", "differ"), [(0.99, 1), (0.5, 0)])
def test_vectors_may_differ_by_its_cosine(cosine: float, differ: int) -> None:
    async def main() -> None:
        worker = Worker()
        worker.mirror.cosine = cosine
        answer = pointing(CANDIDATE, 0.8, 0.6)
        worker.new.postprocess = lambda *_: answer  # type: ignore[method-assign]
        worker.answered(pointing(OLD_BUNDLE, 1.0, 0.0))
        await asyncio.sleep(1)
        new = worker.counted()[NEW]
        assert (new.compared, new.differ) == (1, differ)

    run(main())


def test_only_bodies_that_can_be_asked_again_are() -> None:
    assert mirrored_body({"text": "a"}) == {"text": "a"}
    assert mirrored_body(b"a") == b"a"
    for body in (mirrored_body(b"a"), mirrored_body({"text": "a"})):
        assert body.is_golden  # type: ignore[union-attr]
        # Callers' own are not passed by what was asked before.
        assert not hasattr(body, "goes_first")
    assert mirrored_body(None) is None


@pytest.fixture
def mirrored() -> Iterator[Mirror]:
    MIRRORS["texts"] = Mirror("a1", "texts/8", CANDIDATE, SHARE, 0.99)
    yield MIRRORS["texts"]
    MIRRORS.clear()


async def test_the_front_door_offers_what_has_left(mirrored: Mirror) -> None:
    processor = Processor({"texts": Answer("A", OLD_BUNDLE), "texts/8": None})
    processor.built("texts", Bundle(OLD_BUNDLE))
    candidate = Bundle(CANDIDATE, seconds=0.001)
    processor.built("texts/8", candidate)
    door = FrontDoor(host_of(processor), read_settings({}))
    sent: list[Any] = []
    await door(
        {
            "type": "http", "method": "POST", "path": "/serve/texts",
            "headers": [(b"content-type", b"application/json")],
        },
        once({"type": "http.request", "body": b'{"text": "a"}', "more_body": False}),
        recorded(sent, candidate),
    )  # fmt: skip
    while not mirrored.noted:
        await asyncio.sleep(0.001)
    assert candidate.asked == [{"text": "a"}]
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    # The host itself was asked for the one request only.
    assert [asked[0] for asked in processor.asked] == ["texts"]


def once(message: Any) -> Callable[[], Coroutine[Any, Any, Any]]:
    left = [message]

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        return left.pop()

    return receive


def recorded(sent: list[Any], candidate: Bundle) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def send(message: Any) -> None:
        assert not candidate.asked
        sent.append(message)

    return send
