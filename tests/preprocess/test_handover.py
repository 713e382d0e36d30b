from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from preprocess import handover
from preprocess.handover import Handover, Successor
from preprocess.queue.admission import Admission
from preprocess.queue.coalesce import Call, Coalescer
from preprocess.stats import EndpointFigures
from preprocess.tensors import Tensor
from tests.gateway.played_host import Counter
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker import request_counts
from transformer_serving.contract.worker.request_context import (
    begin_request,
    current_caller,
    current_operation,
)


@pytest.fixture(autouse=True)
def _empty_registry() -> Iterator[None]:
    handover._registry().clear()
    yield
    handover._registry().clear()


class Engine:
    """Whether the new version is loaded, and how often it was asked."""

    def __init__(self) -> None:
        self.ready = False
        self.asked = 0

    async def is_ready(self) -> bool:
        self.asked += 1
        return self.ready


def bundle(version: int) -> Any:
    return SimpleNamespace(endpoint=SimpleNamespace(bundle_version=version))


def test_the_first_bundle_serves_at_once() -> None:
    assert Handover("e", bundle(1), Engine().is_ready).server() is None


async def looked(change: Handover) -> None:
    change.look()
    assert change._looking is not None
    await change._looking


async def test_the_old_bundle_serves_until_the_new_engine_is_there() -> None:
    old, new, engine = bundle(1), bundle(2), Engine()
    Handover("e", old, engine.is_ready)
    change = Handover("e", new, engine.is_ready)
    assert change.server() is old
    await looked(change)
    assert change.server() is old
    engine.ready = True
    await looked(change)  # too soon: the engine is asked a few times a second at most
    assert (change.server(), engine.asked) == (old, 1)
    change._next_probe = 0
    await looked(change)
    assert change.server() is None
    await looked(change)
    assert engine.asked == 2


async def test_after_a_bad_bundle_the_last_good_one_still_serves() -> None:
    good, bad, better, engine = bundle(1), bundle(2), bundle(3), Engine()
    Handover("e", good, engine.is_ready)
    Handover("e", bad, engine.is_ready)
    change = Handover("e", better, engine.is_ready)
    assert change.server() is good


def test_a_rebuild_of_the_same_bundle_serves_at_once() -> None:
    Handover("e", bundle(1), Engine().is_ready)
    assert Handover("e", bundle(1), Engine().is_ready).server() is None


@pytest.mark.parametrize("later", [1, 3, 2], ids=["rolled back", "the next", "rebuilt"])
async def test_one_that_was_superseded_takes_nobodys_place(later: int) -> None:
    """Its probe may come back after another one has taken over, and nobody asks it any more."""
    engine = Engine()
    engine.ready = True
    Handover("e", bundle(1), engine.is_ready)
    superseded = Handover("e", bundle(2), engine.is_ready)
    serving = bundle(later)
    Handover("e", serving, engine.is_ready).take_over()
    assert await superseded.probe()
    # What it was asked before it answers itself.
    assert superseded.server() is None
    assert Handover("e", bundle(4), engine.is_ready).server() is serving


async def test_a_rebuild_takes_the_place_of_the_object_before_it() -> None:
    engine = Engine()
    engine.ready = True
    Handover("e", bundle(1), engine.is_ready)
    first, rebuilt = bundle(2), bundle(2)
    changes = [Handover("e", one, engine.is_ready) for one in (first, rebuilt)]
    for change in changes:
        assert await change.probe()
    assert Handover("e", bundle(3), engine.is_ready).server() is rebuilt


def test_endpoints_do_not_meet() -> None:
    Handover("one", bundle(1), Engine().is_ready)
    assert Handover("other", bundle(2), Engine().is_ready).server() is None


def test_an_endpoint_that_nobody_asks_is_forgotten() -> None:
    Handover("gone", bundle(1), Engine().is_ready)
    handover._registry()["gone"].asked -= 2 * handover._KEEP_S
    Handover("e", bundle(1), Engine().is_ready)
    assert set(handover._registry()) == {"e"}


BODY = {"text": "a cup of tea"}


class Older:
    """A bundle as older code has it: its own keys in its state, its own classes of errors."""

    def __init__(self, outcome: Any = "its row") -> None:
        self.endpoint = SimpleNamespace(bundle_version=1)
        self.outcome = outcome
        self.asked: list[str] = []

    def preprocess(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
        assert state == {}
        state["served_by"] = state["passage"] = "older"
        self.asked.append("preprocess")
        return body

    async def process(self, request: Any, state: dict[str, Any], collect: Any = None) -> Any:
        assert request == BODY
        self.asked.append("process")
        return self.outcome

    def postprocess(self, outcome: Any, state: dict[str, Any], collect: Any = None) -> Any:
        assert (outcome, state["passage"]) == (self.outcome, "older")
        self.asked.append("postprocess")
        return SimpleNamespace(status_code=200, headers={"x-bundle-version": "1"})


async def zeros(inputs: list[Tensor], deadline: float) -> Any:
    return [np.zeros((len(inputs[0].array), 2), np.float32)]


def bundle_of(version: int, call: Call, fields: dict[str, Any], tokenizer: bytes) -> Successor:
    """One whose engine is asked by `call`."""
    made = Successor(json.dumps({**fields, "bundle_version": version}).encode(), lambda: tokenizer)
    made.model_endpoint = SimpleNamespace(serving_url="e", version=None)
    asked_by(made, call)
    return made


def asked_by(made: Successor, call: Call) -> None:
    made.own.engine._coalescer = Coalescer(
        made.endpoint, call, Admission(1000, 2.0), lambda: 1, EndpointFigures("e")
    )


@pytest.fixture
def successor(endpoint_fields: dict[str, Any], tokenizer_json: bytes) -> Successor:
    """Bundle 2 with an engine of its own."""
    return bundle_of(2, zeros, endpoint_fields, tokenizer_json)


async def answer(endpoint: Any, body: Any = BODY) -> Any:
    """As clearml-serving asks: one state and three steps."""
    state: dict[str, Any] = {}
    outcome = await endpoint.process(endpoint.preprocess(body, state), state)
    return endpoint.postprocess(outcome, state)


def before(successor: Successor, older: Older, engine: Engine) -> None:
    """`older` serves the endpoint when the successor is first asked."""
    Handover("e", older, engine.is_ready)
    successor.handover._is_ready = engine.is_ready


async def test_a_bundle_alone_serves_itself(successor: Successor) -> None:
    assert (await answer(successor)).headers["x-bundle-version"] == "2"


async def test_all_three_steps_are_the_predecessors_until_the_engine_is_there(
    successor: Successor,
) -> None:
    older, engine = Older(), Engine()
    before(successor, older, engine)
    assert (await answer(successor)).headers["x-bundle-version"] == "1"
    assert older.asked == ["preprocess", "process", "postprocess"]
    engine.ready = True
    successor.handover._next_probe = 0
    # The request that finds the engine there has begun with the predecessor, and ends there.
    assert (await answer(successor)).headers["x-bundle-version"] == "1"
    await asyncio.sleep(0)
    assert (await answer(successor)).headers["x-bundle-version"] == "2"
    assert len(older.asked) == 6


async def test_a_predecessor_is_asked_as_it_knows_it(successor: Successor) -> None:
    class Plainer(Older):
        operations = frozenset({"openai.chat"})

        def preprocess(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
            self.asked.append(repr(current_operation.get()))
            return super().preprocess(body, state, collect)

    older = Plainer()
    before(successor, older, Engine())
    begin_request(("a", None), ("openai.tgi_chat", b""))
    assert (await answer(successor)).headers["x-bundle-version"] == "1"
    assert older.asked[0] == repr(("openai.chat", b""))
    begin_request(("a", None), ("openai.embeddings", b""))
    refusal = successor.preprocess(BODY, {})
    assert refusal.kind.code == "unavailable"


async def test_nobody_waits_for_a_triton_that_does_not_say_whether_it_has_the_engine(
    successor: Successor,
) -> None:
    never = asyncio.get_running_loop().create_future()
    asked = []

    async def is_ready() -> bool:
        asked.append(time.monotonic())
        return bool(await never)

    before(successor, Older(), Engine())
    successor.handover._is_ready = is_ready
    for _ in range(3):
        assert (await answer(successor)).headers["x-bundle-version"] == "1"
        await asyncio.sleep(0)
        successor.handover._next_probe = 0
    assert len(asked) == 1
    never.set_result(True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await answer(successor)).headers["x-bundle-version"] == "2"


async def test_where_the_engine_has_ours_instead_of_the_old_one_we_answer(
    successor: Successor,
) -> None:
    gone = SimpleNamespace(kind=SimpleNamespace(code="unavailable"))
    older, engine = Older(gone), Engine()
    before(successor, older, engine)
    assert (await answer(successor)).headers["x-bundle-version"] == "1"
    engine.ready = True
    successor.handover._next_probe = time.monotonic() + 60
    served = await answer(successor)
    assert (served.status_code, served.headers["x-bundle-version"]) == (200, "2")
    assert older.asked[3:] == ["preprocess", "process"]


async def test_an_error_of_the_predecessor_is_its_own_to_answer(successor: Successor) -> None:
    older, engine = Older(ServingError("overloaded", "too much")), Engine()
    before(successor, older, engine)
    assert (await answer(successor)).headers["x-bundle-version"] == "1"
    assert older.asked == ["preprocess", "process", "postprocess"]


class Refusing(Older):
    def preprocess(self, body: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return self.outcome

    async def process(self, request: Any, state: dict[str, Any], collect: Any = None) -> Any:
        return request

    def postprocess(self, outcome: Any, state: dict[str, Any], collect: Any = None) -> Any:
        headers = {"x-bundle-version": "1"}
        return SimpleNamespace(status_code=outcome.kind.status, headers=headers)


async def test_a_body_that_is_wrong_for_both_tasks_is_refused_by_the_new_one(
    successor: Successor,
) -> None:
    """And whether its engine is there is asked as rarely as ever."""
    older, engine = Refusing(ServingError("invalid_field", "no documents")), Engine()
    older.endpoint.task = "rerank"
    before(successor, older, engine)
    successor.handover._next_probe = time.monotonic() + 60
    for body, status in ({"nonsense": 1}, 400), (BODY, 503):
        refused = await answer(successor, body)
        assert (refused.status_code, refused.headers["x-bundle-version"]) == (status, "2")
    assert engine.asked == 0


@pytest.mark.parametrize(
    ("task", "status", "by"), [("rerank", 503, "2"), ("text-classification", 400, "1")]
)
async def test_a_body_that_one_of_another_task_refuses_is_asked_again_later(
    successor: Successor, task: str, status: int, by: str
) -> None:
    """As of an endpoint that was removed and added again, whose engine is not loaded yet."""

    assert successor.endpoint.task == "text-classification"
    older, engine = Refusing(ServingError("invalid_field", "no documents")), Engine()
    older.endpoint.task = task
    before(successor, older, engine)
    refused = await answer(successor)
    assert (refused.status_code, refused.headers["x-bundle-version"]) == (status, by)
    assert ("retry-after" in refused.headers) == (status == 503)
    engine.ready = True
    successor.handover._next_probe = 0
    await answer(successor)
    await asyncio.sleep(0)
    served = await answer(successor)
    assert (served.status_code, served.headers["x-bundle-version"]) == (200, "2")


async def test_a_text_that_one_of_another_task_cannot_encode_is_asked_again_later(
    successor: Successor,
) -> None:
    older, engine = Older(ServingError("impossible", "a text has no [MASK]")), Engine()
    older.endpoint.task = "fill-mask"
    before(successor, older, engine)
    refused = await answer(successor)
    assert (refused.status_code, refused.headers["x-bundle-version"]) == (503, "2")
    assert "retry-after" in refused.headers


def drops_ours_for(successor: Successor, heir: Older) -> None:
    """The engine has the heir's version alone, from the moment in which ours is asked."""

    async def gone(inputs: list[Tensor], deadline: float) -> Any:
        Handover("e", heir, Engine().is_ready).take_over()
        raise ServingError("unavailable", "the engine does not have this bundle version")

    asked_by(successor, gone)


async def test_where_the_engine_dropped_ours_who_took_over_answers_from_the_start(
    successor: Successor,
) -> None:
    heir = Older()
    drops_ours_for(successor, heir)
    served = await answer(successor)
    assert (served.status_code, served.headers["x-bundle-version"]) == (200, "1")
    assert heir.asked == ["preprocess", "process", "postprocess"]


async def test_who_took_over_with_another_task_is_not_asked(successor: Successor) -> None:
    heir = Older()
    heir.endpoint.task = "fill-mask"
    drops_ours_for(successor, heir)
    served = await answer(successor)
    assert (served.status_code, served.headers["x-bundle-version"]) == (503, "2")
    assert "retry-after" in served.headers
    assert heir.asked == []


async def test_where_nobody_took_over_the_error_is_ours(successor: Successor) -> None:
    heir = Older()
    heir.endpoint.bundle_version = successor.endpoint.bundle_version
    drops_ours_for(successor, heir)
    served = await answer(successor)
    assert (served.status_code, served.headers["x-bundle-version"]) == (503, "2")
    assert heir.asked == []


async def test_who_took_over_is_not_asked_in_a_dialect_that_it_does_not_speak(
    successor: Successor,
) -> None:
    class Plainer(Older):
        operations = frozenset({"openai.chat"})

    heir = Plainer()
    drops_ours_for(successor, heir)
    begin_request(("a", None), ("hf.inference", b""))
    served = await answer(successor, {"inputs": BODY["text"]})
    assert (served.status_code, served.headers["x-bundle-version"]) == (503, "2")
    assert heir.asked == []


def probing(successor: Successor, outcome: ServingError) -> list[str]:
    """The old bundle fails so, and a Triton does not say whether it has ours; what is known of the
    question.
    """
    known: list[str] = []

    async def is_ready() -> bool:
        known.append("asked")
        try:
            return bool(await asyncio.get_running_loop().create_future())
        finally:
            known.append("over")

    before(successor, Older(outcome), Engine())
    successor.handover._next_probe = time.monotonic() + 60
    successor.handover._is_ready = is_ready
    return known


GONE = ServingError("unavailable", "the engine does not have this bundle version")


async def test_whether_ours_is_there_is_not_asked_for_longer_than_the_request_may_take(
    successor: Successor, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = probing(successor, GONE)
    monkeypatch.setattr(successor.own, "settings", replace(successor.own.settings, timeout_s=0.1))
    async with asyncio.timeout(5):
        assert (await answer(successor)).headers["x-bundle-version"] == "1"
    assert known == ["asked", "over"]


async def test_nor_for_a_caller_that_has_left(successor: Successor) -> None:
    known = probing(successor, GONE)
    caller = asyncio.get_running_loop().create_future()
    current_caller.set(caller)
    asyncio.get_running_loop().call_later(0.1, caller.set_result, None)
    async with asyncio.timeout(5):
        assert (await answer(successor)).headers["x-bundle-version"] == "1"
    assert known == ["asked", "over"]


async def test_no_change_of_the_configuration_waits_for_what_is_worked_on(
    successor: Successor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor for a question whether the engine is there; and each is counted again in the end."""
    counter, seen = Counter(), []
    monkeypatch.setattr(request_counts, "request_counts", lambda: [counter])

    async def call(inputs: list[Tensor], deadline: float) -> Any:
        seen.append(counter.value)
        if len(seen) == 2:
            raise ServingError("engine_failed", "played")
        return await zeros(inputs, deadline)

    async def is_ready() -> bool:
        seen.append(counter.value)
        return True

    asked_by(successor, call)
    for status in (200, 502):
        counter.inc()
        assert (await answer(successor)).status_code == status
        assert counter.value == 1
        counter.dec()
    handover._registry().clear()
    del successor.handover
    before(successor, Older(GONE), Engine())
    successor.handover._next_probe = time.monotonic() + 60
    successor.handover._is_ready = is_ready
    counter.inc()
    assert (await answer(successor)).headers["x-bundle-version"] == "2"
    assert (seen, counter.value) == ([0] * 4, 1)


async def test_a_request_lent_across_two_updates_is_the_third_bundles(
    endpoint_fields: dict[str, Any], tokenizer_json: bytes, successor: Successor
) -> None:
    """The second one's engine never came: the first, which serves for it, was dropped."""

    async def gone(inputs: list[Tensor], deadline: float) -> Any:
        bundle_of(3, zeros, endpoint_fields, tokenizer_json).handover.take_over()
        raise GONE

    first = bundle_of(1, gone, endpoint_fields, tokenizer_json)
    assert first.handover.server() is None
    successor.handover._is_ready = Engine().is_ready
    assert successor.handover.server() is first
    served = await answer(successor)
    assert (served.status_code, served.headers["x-bundle-version"]) == (200, "3")
