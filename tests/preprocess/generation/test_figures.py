"""What is counted of generated text, and why a sequence was cut short."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from preprocess.generation import answer, sequence
from preprocess.generation.detokenizer import Detokenizer
from preprocess.generation.seats import seats
from tests.engine.triton_server import TritonServer
from tests.preprocess.generation.test_text_generation import served, until
from tests.text_engine import PROMPT, Asker, asked, event_of, fields, write_model
from transformer_serving.contract.worker.deferred import do_all_now
from transformer_serving.contract.worker.open_streams import streams_ended
from transformer_serving.contract.worker.request_context import (
    GoldenBody,
    current_arrival,
    current_caller,
)

pytestmark = pytest.mark.slow
_numbers = itertools.count()


@pytest.fixture
def asker(settings: Any, text_triton: TritonServer) -> Iterator[Asker]:
    """An endpoint of its own, so that its figures are this test's."""
    name = f"counted{next(_numbers)}"
    write_model(text_triton.repository, name)
    client = text_triton.client()
    client.load_model(name)
    client.close()
    yield Asker(name, fields())
    assert seats.taken == 0


def value(asker: Asker, name: str, **labels: str) -> float | None:
    endpoint = asker.endpoint.model_endpoint.serving_url
    return REGISTRY.get_sample_value(
        f"transformer_serving_{name}", {"endpoint": endpoint, **labels}
    )


def cut(asker: Asker) -> dict[str, float]:
    """Sequences by the reason for their end, those of none left out."""
    endpoint = asker.endpoint.model_endpoint.serving_url
    rows = [
        row
        for metric in REGISTRY.collect()
        if metric.name == "transformer_serving_cut_sequences"
        for row in metric.samples
    ]
    return {
        row.labels["reason"]: row.value
        for row in rows
        if row.name.endswith("_total") and row.labels["endpoint"] == endpoint and row.value
    }


def abandoned(asker: Asker) -> dict[str, tuple[float | None, ...]]:
    """Requests and texts that were given up, by the reason."""
    names = ("abandoned_requests_total", "abandoned_texts_total")
    return {
        reason: tuple(value(asker, name, reason=reason) for name in names)
        for reason in ("disconnect", "deadline")
    }


COUNTED = ("first_token_seconds_count", "token_seconds_count", "generated_tokens_total")


async def test_tokens_are_timed_as_they_come_and_not_as_they_are_read(asker: Asker) -> None:
    began = time.monotonic()
    stream = await asker.ask({**asked(4), "stream": True})
    await anext(stream.body_iterator)
    read_one = time.monotonic()
    assert await streams_ended(30)
    all_here = time.monotonic()
    # Longer than the first one took, or the sum could hide it.
    await asyncio.sleep(read_one - began + 0.05)
    assert len([chunk async for chunk in stream.body_iterator]) > 3
    assert value(asker, "token_seconds_count") == 3
    assert (value(asker, "token_seconds_sum") or 0) <= all_here - began


async def test_golden_requests_count_nowhere_and_the_rows_are_there(asker: Asker) -> None:
    assert (await asker.ask(GoldenBody(asked(4)))).status_code == 200
    assert (await asker.ask(GoldenBody({"text": "fail w30"}))).status_code == 502
    assert [value(asker, name) for name in (*COUNTED, "running_streams")] == [0] * 4
    assert cut(asker) == {}
    assert (await asker.ask(asked(4))).status_code == 200
    assert [value(asker, name) for name in COUNTED] == [1, 3, 4]


async def test_tokens_that_are_listed_are_not_computed(asker: Asker) -> None:
    """An autoscaler adds Tritons for those that are."""
    assert len(await asker.answer({"inputs": "w20 w21"}, "tgi.tokenize")) == 2
    do_all_now()
    stages = {
        stage: value(asker, "stage_seconds_count", stage=stage)
        for stage in ("tokenize", "queue", "infer", "post")
    }
    assert stages == {"tokenize": 1, "queue": 0, "infer": 0, "post": 0}
    assert [value(asker, f"{name}_total") for name in ("texts", "tokens")] == [1, 0]


async def test_who_leaves_before_its_tokens_are_listed_is_counted(asker: Asker) -> None:
    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left.set_result(None)
    token = current_caller.set(left)
    try:
        # As long as takes a thread.
        response = await asker.ask({"inputs": "w20 " * 1500}, "tgi.tokenize")
    finally:
        current_caller.reset(token)
    assert response.status_code == 499
    assert abandoned(asker) == {"disconnect": (1, 1), "deadline": (0, 0)}


async def test_tokens_count_as_they_come_of_every_sequence(asker: Asker) -> None:
    """Also of those that begin where another one ends, and of one token each."""
    await asker.ask(asked(1, num_return_sequences=4))
    assert value(asker, "generated_tokens_total") == 4
    stream = await asker.ask({"text": "hang w30", "stream": True})
    for _ in range(3):
        await anext(stream.body_iterator)
    assert value(asker, "generated_tokens_total") == 7
    assert value(asker, "running_streams") == 1
    stream.close()
    assert value(asker, "generated_tokens_total") == 7


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_fault_of_one_cuts_is_counted_by_that_fault(
    asker: Asker, stream: bool
) -> None:
    """Both fail, and the one that is told second is not that of a caller who left."""
    body = {"text": "cache w30", "parameters": {"num_return_sequences": 4}, "stream": stream}
    response = await asker.ask(body)
    if stream:
        assert b"error" in b"".join([chunk async for chunk in response.body_iterator])
    found = cut(asker)
    # Of an answer that is no stream some may not have begun.
    assert found.keys() == {"overloaded"}
    assert found["overloaded"] == 4 or not stream
    assert value(asker, "running_streams") == 0


async def test_what_the_deadline_cuts_is_counted_by_it(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here of a caller who reads nothing."""
    body = {"text": "hang w30", "timeout_ms": 60_000, "stream": True}
    response = await asker.ask({**body, "parameters": {"num_return_sequences": 2}})
    response._deadline = 0.0
    monkeypatch.setattr(answer, "_LAST_WORDS_S", 0.05)
    blocked = asyncio.Event()

    async def send(message: Any) -> None:
        await blocked.wait()

    async def receive() -> Any:
        await blocked.wait()

    await response({"type": "http"}, receive, send)
    assert cut(asker) == {"deadline": 2}


async def test_who_waits_for_a_first_token_counts_against_the_limit(asker: Asker) -> None:
    """As seats do, so that the figure is near its limit before callers are refused."""
    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    token = current_caller.set(left)
    try:
        body = {"text": "never w30", "parameters": {"num_return_sequences": 2}, "stream": True}
        asking = asyncio.ensure_future(asker.ask(body))
        await until(lambda: seats.taken == 2)
        assert value(asker, "running_streams") == 2
        left.set_result(None)
        assert (await asking).status_code == 499
    finally:
        current_caller.reset(token)
    assert value(asker, "running_streams") == 0
    assert abandoned(asker) == {"disconnect": (1, 1), "deadline": (0, 0)}
    assert (await asker.refusal({"text": "full w30"}))[0] == 503
    assert (seats.taken, value(asker, "running_streams")) == (0, 0)
    stream = await asker.ask({"text": "hang w30", "stream": True})
    assert value(asker, "running_streams") == 1
    stream.close()
    assert value(asker, "running_streams") == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_what_is_given_up_before_its_first_token_is_counted(
    asker: Asker, stream: bool
) -> None:
    """No sequence of it is there that could be cut."""
    texts = ["never w30"] if stream else ["never w30", "never w31"]
    body = {"text": texts, "timeout_ms": 300, "stream": stream}
    assert (await asker.refusal(body))[1]["code"] == "deadline"
    # Its time had passed when the host came to it.
    token = current_arrival.set(time.monotonic() - 1)
    try:
        assert (await asker.refusal({**body, "text": "w30"}))[1]["code"] == "deadline"
    finally:
        current_arrival.reset(token)
    assert (await asker.ask(GoldenBody(body))).status_code == 504
    assert (abandoned(asker), cut(asker)) == (
        {"disconnect": (0, 0), "deadline": (2, 1 + len(texts))},
        {},
    )


@pytest.mark.parametrize(
    ("text", "stream", "begun"),
    [("never w30", False, 0), ("never w30", True, 0), ("hang w30", False, 1)],
)
async def test_a_worker_that_leaves_is_no_caller_that_does(
    asker: Asker, text: str, stream: bool, begun: int
) -> None:
    """`begun` sequences have their first token."""
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    token = current_caller.set(caller)
    try:
        asking = asyncio.ensure_future(asker.refusal({"text": text, "stream": stream}))
        if begun:
            await until(lambda: (value(asker, "generated_tokens_total") or 0) > 0)
        else:
            await until(lambda: seats.taken > 0)
        caller.set_exception(ConnectionAbortedError())
        status, error = await asking
    finally:
        current_caller.reset(token)
    assert (status, error["code"]) == (503, "unavailable")
    assert cut(asker) == ({"unavailable": begun} if begun else {})
    assert abandoned(asker) == {"disconnect": (0, 0), "deadline": (0, 0)}


async def test_a_stream_under_which_the_worker_leaves_ends_with_an_event(asker: Asker) -> None:
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    token = current_caller.set(caller)
    try:
        body = {"text": "hang w30", "parameters": {"num_return_sequences": 2}, "stream": True}
        *_, last, end = await cut_off(await asker.ask(body), caller)
    finally:
        current_caller.reset(token)
    name, error = event_of(last.decode().strip())
    assert (name, error["code"], end) == ("error", "unavailable", b"")
    assert cut(asker) == {"unavailable": 2}


async def cut_off(stream: Any, caller: asyncio.Future[None]) -> list[bytes]:
    """The events of one that the worker leaves after the third; no disconnection comes."""
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) == 3:
            caller.set_exception(ConnectionAbortedError())

    async def receive() -> Any:
        await asyncio.wait({caller})
        return {"type": "http.disconnect"}

    await stream({"type": "http"}, receive, send)
    return sent


async def test_who_leaves_is_counted_as_one_who_left(asker: Asker) -> None:
    body = {"text": "slow w30", "parameters": {"num_return_sequences": 2}, "stream": True}
    await served(await asker.ask(body), leaves_after=3)
    assert cut(asker) == {"disconnect": 2}


async def test_a_sequence_that_cannot_be_made_keeps_no_seat(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Detokenizer] = []

    def second(library: Any, prompt: list[int]) -> Detokenizer:
        if made:
            raise ValueError("no text")
        made.append(Detokenizer(library, prompt))
        return made[0]

    monkeypatch.setattr(sequence, "Detokenizer", second)
    several = {"text": PROMPT, "parameters": {"num_return_sequences": 3}, "stream": True}
    status, error = await asker.refusal(several)
    assert (status, error["code"]) == (500, "internal")
    assert cut(asker) == {"internal": 1}
    assert (seats.taken, value(asker, "running_streams")) == (0, 0)
