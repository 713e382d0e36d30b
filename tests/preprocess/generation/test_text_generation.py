"""The whole way in one worker: from a body to text, by a real decoupled model in a real Triton."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Any

import orjson
import pytest
from prometheus_client import REGISTRY

from preprocess.generation import answer
from preprocess.generation.engine import TextEngine
from preprocess.generation.engines import ENGINES, openvino
from preprocess.generation.prompt import Prompt
from preprocess.generation.seats import seats
from preprocess.triton.clients import close_clients
from preprocess.triton.streamed_request import StreamedRequest
from tests.engine.triton_server import TritonServer
from tests.text_engine import (
    PROMPT,
    VERSION,
    Asker,
    asked,
    event_of,
    fields,
    lived,
    three_tokens,
    write_model,
)
from transformer_serving.contract.generation import Options
from transformer_serving.contract.worker.request_context import (
    GoldenBody,
    MirroredBody,
    current_caller,
)
from transformer_serving.contract.worker.watched_answers import watched_answers

pytestmark = pytest.mark.slow


async def test_the_seeds_body_is_answered_with_prompt_and_continuation(text: Asker) -> None:
    assert await text.answer(asked(4)) == {"text": "w20 w21 w22 w20 w21 w22 w20"}
    assert (await text.answer({"text": PROMPT}))["text"].count("w20") == 1 + 6
    assert await text.answer(PROMPT.encode()) == await text.answer({"text": PROMPT})


async def test_the_pipelines_shapes(text: Asker) -> None:
    parameters = {"max_new_tokens": 1}
    one = {"generated_text": "w20 w21 w22 w20"}
    assert await text.answer({"inputs": PROMPT, "parameters": parameters}) == [one]
    assert await text.answer({"inputs": [PROMPT, PROMPT], "parameters": parameters}) == [[one]] * 2
    several = {"inputs": PROMPT, "parameters": {**parameters, "num_return_sequences": 2}}
    assert await text.answer(several) == [one, one]
    without = {"inputs": PROMPT, "parameters": {**parameters, "return_full_text": False}}
    assert await text.answer(without) == [{"generated_text": " w20"}]


async def test_events_are_pieces_and_the_end(text: Asker) -> None:
    assert await text.events(asked(3, seed=5)) == three_tokens()


async def test_an_end_token_ends_it_and_has_no_text(text: Asker) -> None:
    body = {"text": "w20 w21 </s>"}
    assert (await text.answer(body))["text"] == "w20 w21 </s> w20 w21"
    assert (await text.events(body))[-2]["finish_reason"] == "eos_token"
    ignoring = {**body, "parameters": {"ignore_eos": True, "max_new_tokens": 4}}
    assert (await text.answer(ignoring))["text"] == "w20 w21 </s> w20 w21 w20"


async def test_a_stop_string_ends_it_at_the_engine_too(
    text: Asker, text_triton: TritonServer
) -> None:
    before = len(lived(text_triton, "text"))
    body = {"text": "hang w30 w31", "parameters": {"stop": "0 w", "max_new_tokens": 32}}
    assert (await text.answer(body))["text"] == "hang w30 w31 hang w3"
    await until(lambda: len(lived(text_triton, "text")) > before)
    assert lived(text_triton, "text")[-1].startswith("cancelled")
    assert seats.taken == 0


@pytest.mark.parametrize("word", ["w20", "every"])
@pytest.mark.parametrize("more", [[], ["w21 w22"]])
async def test_a_stop_string_may_name_a_special_token(
    text: Asker, word: str, more: list[str]
) -> None:
    """Alone or behind others in one message, and behind what might begin another stop string."""
    prompt = f"{word} w21 <s>"
    body = {"text": prompt, "parameters": {"stop": ["<s>", *more], "max_new_tokens": 9}}
    assert (await text.answer(body))["text"] == f"{prompt} {word} w21"
    *pieces, end, _ = await text.events(body)
    assert "".join(row["text"] for row in pieces) + end["text"] == f" {word} w21"
    assert (end["finish_reason"], end["generated_tokens"]) == ("stop_sequence", 3)
    ending = {"text": f"{word} w21 </s>", "parameters": {"stop": "</s>"}}
    assert (await text.events(ending))[-2]["finish_reason"] == "eos_token"


async def test_seeds_are_given_back_and_repeat(text: Asker) -> None:
    body = asked(6, do_sample=True)
    first = await text.ask(body)
    seed = int(first.headers["x-seed"])
    again = await text.ask(asked(6, do_sample=True, seed=seed))
    other = await text.ask(asked(6, do_sample=True, seed=seed + 1))
    assert first.body == again.body != other.body


async def test_several_sequences_have_seeds_of_their_own(text: Asker) -> None:
    body = asked(4, do_sample=True, num_return_sequences=3, seed=7)
    rows = await text.answer(body)
    alone = [await text.answer(asked(4, do_sample=True, seed=7 + at)) for at in range(3)]
    assert rows == alone
    events = await text.events(body)
    for at in range(3):
        streamed = "".join(row["text"] for row in events[:-1] if row["index"] == at)
        assert PROMPT + streamed == alone[at]["text"]


async def test_too_many_tokens_are_told_with_both_numbers(text: Asker) -> None:
    long = " ".join(["w30"] * 40)
    body = {"text": long, "parameters": {"max_new_tokens": 25}}
    status, error = await text.refusal(body)
    assert (status, error["code"], error["limit"], error["got"]) == (413, "too_large", 64, 65)
    assert "40 tokens and 25" in error["message"]
    # Where nobody asked for a number there is room for what there is room for.
    short = {"text": " ".join(["w30"] * 60)}
    assert (await text.answer(short))["text"].count("w30") == 64
    cut = {"text": long, "parameters": {"max_new_tokens": 32, "truncate": 2}}
    assert (await text.answer(cut))["text"].count("w30") == 72


@pytest.mark.parametrize(
    ("word", "status", "code"),
    [("full", 503, "overloaded"), ("refuse", 502, "engine_failed")],
)
async def test_what_the_engine_refuses_has_a_status(
    text: Asker, word: str, status: int, code: str
) -> None:
    for stream in (False, True):
        got, error = await text.refusal({"text": f"{word} w30", "stream": stream})
        assert (got, error["code"]) == (status, code)
    assert seats.taken == 0


@pytest.mark.parametrize(
    ("word", "status", "code"), [("fail", 502, "engine_failed"), ("cache", 503, "overloaded")]
)
async def test_an_error_in_the_middle_is_an_event_and_the_end(
    text: Asker, word: str, status: int, code: str
) -> None:
    *events, (name, error) = await text.events({"text": f"{word} w30"})
    before = [f" {word}", " w30", f" {word}"]
    # Triton ends a stream with an error at once: answers that are on their way may be left out.
    assert [row["text"] for row in events] == before[: len(events)]
    assert (name, error["code"]) == ("error", code)
    assert set(error) == {"code", "message", "field", "limit", "got"}
    got, whole = await text.refusal({"text": f"{word} w30"})
    assert (got, whole) == (status, error)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("word", "status"), [("cache", 503), ("fail", 502)])
async def test_an_error_in_the_place_of_the_first_token_has_its_status(
    text: Asker, word: str, status: int, stream: bool
) -> None:
    got, body = await text.refusal({"text": f"{word} {word} w20", "stream": stream})
    assert got == status, body
    assert seats.taken == 0


async def test_a_fault_of_a_stream_is_logged(text: Asker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        response = await text.ask({"text": "fail w30", "stream": True})
        await served(response)
    assert line_of(caplog) == ("text", 502, "engine_failed", response.headers["x-request-id"])


async def test_the_deadline_of_a_caller_that_does_not_read_is_logged(
    text: Asker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "_LAST_WORDS_S", 0.0)
    with caplog.at_level(logging.WARNING):
        response = await text.ask({"text": "hang w30", "stream": True, "timeout_ms": 60_000})
        response._deadline = 0.0
        await served(response, reads=False)
    assert line_of(caplog) == ("text", 504, "deadline", response.headers["x-request-id"])


def line_of(caplog: pytest.LogCaptureFixture) -> tuple[Any, ...]:
    """What the one line of a fault says."""
    (line,) = [vars(row) for row in caplog.records if hasattr(row, "request_id")]
    return tuple(line[name] for name in ("endpoint", "status", "code", "request_id"))


@pytest.mark.parametrize(
    ("word", "leaves_after", "status"), [("w20", 1000, 200), ("fail", 1000, 502), ("slow", 3, 499)]
)
async def test_a_rollout_hears_of_a_stream_when_it_has_ended(
    text: Asker, word: str, leaves_after: int, status: int
) -> None:
    """By what it was in the end, and once; of golden requests it hears nothing."""
    watched = watched_answers()
    noted = watched["text"] = deque()
    try:
        body = {"text": f"{word} w30", "stream": True}
        await served(await text.ask(GoldenBody(body)), leaves_after)
        response = await text.ask(body)
        assert not noted
        await served(response, leaves_after)
        ((told, tokens, _),) = noted
        assert (told, tokens) == (status, 2)
    finally:
        watched.clear()


async def test_a_silence_is_given_up(settings: Any, text: Asker, text_triton: TritonServer) -> None:
    before = len(lived(text_triton, "text"))
    settings(TOKEN_GAP_S="2", FIRST_TOKEN_S="3")
    impatient = Asker("text", fields())
    name, error = (await impatient.events({"text": "hang w30"}))[-1]
    assert (error["code"], error["limit"]) == ("unavailable", "2 s")
    await until(lambda: len(lived(text_triton, "text")) == before + 1)
    status, error = await impatient.refusal({"text": "never w30", "stream": True})
    assert (status, error["code"], error["limit"]) == (504, "deadline", "3 s")
    assert seats.taken == 0


async def test_the_deadline_ends_it(text: Asker, text_triton: TritonServer) -> None:
    for stream in (False, True):
        before, begun = len(lived(text_triton, "text")), first_tokens()
        # Again with more time where all of it had passed before the first token.
        for timeout_ms in (2000, 10_000, 60_000):
            response = await text.ask(
                {"text": "hang w30", "timeout_ms": timeout_ms, "stream": stream}
            )
            if first_tokens() > begun:
                break
        assert response.status_code == (200 if stream else 504)
        raw = b"".join([chunk async for chunk in response.body_iterator]) if stream else b""
        last = raw if stream else response.body
        assert b'"code":"deadline"' in last
        await until(lambda: len(lived(text_triton, "text")) > before)  # noqa: B023
        assert lived(text_triton, "text")[-1].startswith("cancelled")


@pytest.mark.parametrize("sequences", [1, 2])
async def test_the_deadline_is_told_to_a_caller_that_reads_slowly(
    text: Asker, monkeypatch: pytest.MonkeyPatch, sequences: int
) -> None:
    """Behind one there is always more to send; and it keeps no seat while it does not read."""
    monkeypatch.setattr(answer, "_LAST_WORDS_S", 600.0)
    asked_for = {"max_new_tokens": 32, "num_return_sequences": sequences}
    # Again with more time where all of it had passed before the first token.
    for timeout_ms in (1000, 10_000, 60_000):
        body = {"text": PROMPT, "timeout_ms": timeout_ms, "parameters": asked_for, "stream": True}
        if (response := await text.ask(body)).status_code == 200:
            break
    reads = asyncio.Event()
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) == 3:
            await reads.wait()

    serving = asyncio.ensure_future(response({"type": "http"}, receive=reads_on, send=send))
    await until(lambda: seats.taken == 0, 90)
    assert len(sent) == 3
    reads.set()
    await serving
    assert last_event(sent) == ("error", "deadline")


async def test_what_the_engine_says_to_the_deadline_is_no_fault_of_its_own(text: Asker) -> None:
    """Its answers end as nobody waits for them any more, perhaps before the sequence looks."""
    response = await text.ask({"text": "hang w30", "timeout_ms": 60_000, "stream": True})
    response._deadline = 0.0
    sent = await served(response)
    assert last_event([one.get("body", b"") for one in sent]) == ("error", "deadline")


def last_event(sent: list[bytes]) -> tuple[str, str]:
    """The name and code of an error's."""
    name, error = event_of(b"".join(sent).decode().rstrip().split("\n\n")[-1])
    return name, error["code"]


async def reads_on() -> Any:
    """The `receive` of a caller that stays."""
    await asyncio.Event().wait()


async def test_a_caller_that_leaves_frees_the_engine(
    text: Asker, text_triton: TritonServer
) -> None:
    """While nothing is streamed, and in the middle of a stream."""
    before, begun = len(lived(text_triton, "text")), first_tokens()
    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    token = current_caller.set(left)
    try:
        asking = asyncio.ensure_future(text.ask({"text": "hang w30"}))
        await until(lambda: first_tokens() > begun)
        left.set_result(None)
        assert (await asking).status_code == 499
    finally:
        current_caller.reset(token)
    await until(lambda: len(lived(text_triton, "text")) == before + 1)
    response = await text.ask({"text": "hang w30", "stream": True})
    await served(response, leaves_after=3)
    await until(lambda: len(lived(text_triton, "text")) == before + 2)
    assert all(row.startswith("cancelled") for row in lived(text_triton, "text")[before:])
    assert seats.taken == 0


async def test_no_more_run_than_may(settings: Any, text: Asker) -> None:
    settings(MAX_STREAMS="2")
    small = Asker("text", fields())
    streams = [await small.ask({"text": "hang w30", "stream": True}) for _ in range(2)]
    status, error = await small.refusal({"text": PROMPT})
    assert (status, error["code"], error["limit"]) == (503, "overloaded", 2)
    for stream in streams:
        stream.close()
    assert (await small.ask({"text": PROMPT})).status_code == 200
    status, error = await small.refusal({**asked(1, num_return_sequences=3), "stream": True})
    assert (status, error["code"], error["got"]) == (413, "too_large", 3)


@pytest.mark.parametrize(("most", "at_once"), [(1, 1), (3, 2), (200, 2)])
async def test_more_than_have_seats_run_in_turns(
    settings: Any, text: Asker, most: int, at_once: int
) -> None:
    """In their order, each as it would be alone; half of the seats stay free for others."""
    settings(MAX_STREAMS=str(most))
    small = Asker("text", fields())
    prompts = [f"{'slow ' if at % 3 == 0 else ''}w{30 + at} w{20 + at}" for at in range(8)]
    parameters = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 3, "seed": 9}
    asking = asyncio.ensure_future(small.answer({"text": prompts, "parameters": parameters}))
    await until(lambda: seats.taken >= at_once)
    beside = await small.ask({"text": PROMPT, "stream": True})
    assert beside.status_code == (503 if most == at_once else 200)
    if most > at_once:
        await served(beside, leaves_after=1)
    answered = await asking
    alone = [
        [
            await small.answer({"text": one, "parameters": {
                **parameters, "num_return_sequences": 1, "seed": 9 + 2 * at + which,
            }})
            for which in range(2)
        ]
        for at, one in enumerate(prompts)
    ]  # fmt: skip
    assert answered == alone
    assert seats.taken == 0


async def test_where_one_in_turn_fails_no_other_begins(
    settings: Any, text: Asker, text_triton: TritonServer
) -> None:
    settings(MAX_STREAMS="3")
    small = Asker("text", fields())
    before = len(lived(text_triton, "text"))
    prompts = ["w20", "hang w30", "w21", "cache cache", "w22", "w23"]
    status, error = await small.refusal({"text": prompts})
    assert (status, error["code"], seats.taken) == (503, "overloaded", 0)
    await until(lambda: len(lived(text_triton, "text")) == before + 3)
    assert sorted(row.split()[0] for row in lived(text_triton, "text")[before:]) == [
        "cancelled", "ended", "ended",
    ]  # fmt: skip


@pytest.mark.parametrize("operation", [None, "openai.completions", "v2.infer"])
async def test_a_list_keeps_nobody_waiting_behind_all_of_it(
    settings: Any, text_triton: TritonServer, operation: str | None
) -> None:
    """On an engine that runs two at once, in the order of their coming."""
    write_model(text_triton.repository, "places", places=2)
    client = text_triton.client()
    client.load_model("places")
    many = fields()
    many["limits"]["max_texts"] = 24
    asker = Asker("places", many)
    before = len(lived(text_triton, "places"))
    asking = asyncio.ensure_future(asker.ask(list_of(24, operation), operation))
    await until(lambda: len(lived(text_triton, "places")) > before)
    assert (await asker.ask(asked(1))).status_code == 200
    begun = len(lived(text_triton, "places")) - before
    # Where all of the list stands in front of it, it is the last one.
    assert (begun < 12, asking.done()) == (True, False)
    answered = await asking
    assert answered.status_code == 200, answered.body
    assert answered.body.count(b"w31") >= 24
    assert seats.taken == 0


def list_of(count: int, operation: str | None) -> dict[str, Any]:
    """A body of so many prompts, each of which takes a while."""
    prompts = ["slow w30 w31"] * count
    if operation == "openai.completions":
        return {"prompt": prompts, "max_tokens": 4, "temperature": 0}
    if operation is None:
        return {"text": prompts, "parameters": {"max_new_tokens": 4}}
    tensor = {"name": "text", "shape": [count], "datatype": "BYTES", "data": prompts}
    return {"inputs": [tensor], "parameters": {"max_new_tokens": 4}}


async def test_the_first_token_is_waited_for_while_others_of_the_list_come(
    settings: Any, text: Asker, text_triton: TritonServer
) -> None:
    """Three in turn that take longer together than is waited for beside them."""
    settings(MAX_STREAMS="4", FIRST_TOKEN_S="3")
    patient = Asker("text", fields())
    before = len(lived(text_triton, "text"))
    slow = "slow w30 w31"
    body = {"text": [slow, "never w30", slow, slow], "parameters": {"max_new_tokens": 32}}
    status, error = await patient.refusal(body)
    assert (status, error["code"], error["limit"]) == (504, "deadline", "3 s")
    assert lived(text_triton, "text")[before:] == ["ended 32"] * 3
    assert seats.taken == 0


async def test_the_first_tokens_of_a_stream_are_waited_for_while_others_of_it_come(
    settings: Any, text_triton: TritonServer
) -> None:
    """Two at a time: the last has its own behind all of six, which take longer than is waited for
    where none comes."""
    write_model(text_triton.repository, "pairs", places=2)
    text_triton.client().load_model("pairs")
    settings(FIRST_TOKEN_S="3")
    parameters = {"max_new_tokens": 32, "num_return_sequences": 8}
    events = await Asker("pairs", fields()).events(
        {"text": "slow w30 w31", "parameters": parameters}
    )
    ends = [row["finish_reason"] for row in events[:-1] if "finish_reason" in row]
    assert (ends, events[-1]) == (["length"] * 8, "[DONE]")
    assert lived(text_triton, "pairs") == ["ended 32"] * 8
    assert seats.taken == 0


async def test_a_list_that_runs_across_an_update_is_answered_by_the_new_bundle(
    settings: Any, text_triton: TritonServer
) -> None:
    """As a whole, once Triton has dropped the version that it began with."""
    folder, client = text_triton.repository / "updated", text_triton.client()
    many = {**fields(), "limits": {**fields()["limits"], "max_texts": 40}}
    write_model(text_triton.repository, "updated", VERSION)
    client.load_model("updated")
    settings(MAX_STREAMS="2")
    old = Asker("updated", many)
    body = {"text": ["slow w30 w31"] * 40, "parameters": {"max_new_tokens": 32}}
    asking = asyncio.ensure_future(old.ask(body))
    await until(lambda: lived(text_triton, "updated"))
    write_model(text_triton.repository, "updated", VERSION + 1)
    await asyncio.to_thread(client.load_model, "updated")
    settings(MAX_STREAMS="200")
    new = Asker("updated", {**many, "bundle_version": VERSION + 1})
    while (await new.ask(asked(1))).headers["x-bundle-version"] != str(VERSION + 1):
        await asyncio.sleep(0.3)
    shutil.rmtree(folder / str(VERSION))
    await asyncio.to_thread(client.load_model, "updated")
    answered = await asking
    assert (answered.status_code, answered.headers["x-bundle-version"]) == (200, str(VERSION + 1))
    assert len(orjson.loads(answered.body)) == 40
    assert seats.taken == 0


async def test_a_caller_that_leaves_ends_its_turns(
    settings: Any, text: Asker, text_triton: TritonServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings(MAX_STREAMS="1")
    small = Asker("text", fields())
    before, begun = len(lived(text_triton, "text")), asyncio.Event()
    next_one = TextEngine._next

    async def told(*asked: Any) -> Any:
        sequence = await next_one(*asked)
        begun.set()
        return sequence

    monkeypatch.setattr(TextEngine, "_next", told)
    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    token = current_caller.set(left)
    try:
        asking = asyncio.ensure_future(small.ask({"text": ["w20", "hang w30", "w21"]}))
        await asyncio.wait_for(begun.wait(), 60)
        left.set_result(None)
        assert (await asking).status_code == 499
    finally:
        current_caller.reset(token)
    await until(lambda: len(lived(text_triton, "text")) == before + 2)
    assert lived(text_triton, "text")[-1].startswith("cancelled")
    assert seats.taken == 0


async def test_a_health_check_is_neither_turned_away_nor_turns_anybody_away(
    settings: Any, text: Asker
) -> None:
    settings(MAX_STREAMS="1")
    small = Asker("text", fields())
    check = await small.ask(GoldenBody({"text": "hang w30", "stream": True}))
    stream = await small.ask({"text": "hang w30", "stream": True})
    assert seats.taken == 1
    assert (await small.ask(GoldenBody({"text": PROMPT}))).status_code == 200
    assert (await small.refusal({"text": PROMPT}))[0] == 503
    check.close()
    assert seats.taken == 1
    stream.close()
    assert seats.taken == 0


async def test_the_engine_is_told_of_a_health_check(
    text: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a caller's body that is asked again stands in its turn."""
    told: list[bool] = []

    def request(prompt: Prompt, options: Options, stop: tuple[str, ...]) -> StreamedRequest:
        told.append(options.first)
        return openvino.request(prompt, options, stop)

    monkeypatch.setitem(ENGINES, "openvino", replace(ENGINES["openvino"], request=request))
    counted = Asker("text", fields())
    for body in (GoldenBody(asked(1)), MirroredBody(asked(1)), asked(1)):
        assert (await counted.ask(body)).status_code == 200
    assert told == [True, False, False]


async def test_nothing_is_made_of_a_request_that_has_no_seats(
    settings: Any, text: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making what 512 sequences would be asked keeps everybody else waiting."""
    made: list[Prompt] = []

    def request(prompt: Prompt, options: Options, stop: tuple[str, ...]) -> StreamedRequest:
        made.append(prompt)
        return openvino.request(prompt, options, stop)

    monkeypatch.setitem(ENGINES, "openvino", replace(ENGINES["openvino"], request=request))
    counted = Asker("text", fields())
    many = {"text": [PROMPT] * 8, "parameters": {"num_return_sequences": 64}}
    status, error = await counted.refusal(many)
    assert (status, error["code"], error["got"]) == (413, "too_large", 512)
    assert not made
    assert (await counted.ask(asked(1, num_return_sequences=2))).status_code == 200
    assert (len(made), seats.taken) == (2, 0)


async def test_a_stream_needs_nothing_of_its_endpoint(text: Asker) -> None:
    """A live update drops the endpoint's object; what runs ends on the old bundle."""
    response = await text.ask({"text": "slow w30", "stream": True})
    del text.endpoint
    close_clients()
    raw = b"".join([chunk async for chunk in response.body_iterator])
    assert raw.endswith(b"data: [DONE]\n\n")


async def test_what_has_ended_holds_nothing_in_triton(
    settings: Any, text_triton: TritonServer
) -> None:
    """Of streams that are cancelled as they end Triton 2.51 keeps one in a hundred, and the model
    with it, which can never be unloaded."""
    write_model(text_triton.repository, "ended")
    client = text_triton.client()
    client.load_model("ended")
    ended = Asker("ended", fields())
    for stop in ("never", "w21"):
        body = asked(6, stop=[stop])
        for _ in range(20):
            await asyncio.gather(*(ended.answer(body) for _ in range(15)))
    client.unload_model("ended")
    await until(partial(is_unloaded, client, "ended"), 30)


async def test_callers_leave_while_the_model_is_unloaded(
    settings: Any, text_triton: TritonServer
) -> None:
    """Triton refuses the farewell then. As a second request on the stream that it is for, it ended
    Triton at the first try."""
    client = text_triton.client()
    for at in range(3):
        name = f"leaving{at}"
        write_model(text_triton.repository, name)
        client.load_model(name)
        asker = Asker(name, fields())
        streams = [await asker.ask({"text": "slow w30", "stream": True}) for _ in range(15)]
        for stream in streams:
            await anext(stream.body_iterator)
        client.unload_model(name)
        for stream in streams:
            stream.close()
        await until(partial(is_unloaded, client, name), 30)
    assert client.is_server_live()


def is_unloaded(client: Any, name: str) -> bool:
    rows = client.get_model_repository_index().models
    return all(row.state == "UNAVAILABLE" for row in rows if row.name == name)


def first_tokens() -> float:
    name = "transformer_serving_first_token_seconds_count"
    return REGISTRY.get_sample_value(name, {"endpoint": "text"}) or 0.0


async def served(
    response: Any, leaves_after: int | None = None, *, reads: bool = True
) -> list[Any]:
    """Send it to a caller who leaves after so many messages, or takes none and stays; what was
    sent."""
    gone, never = asyncio.Event(), asyncio.Event()
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)
        if not reads:
            await never.wait()
        if len(messages) == leaves_after:
            gone.set()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    await response({"type": "http"}, receive, send)
    return messages


async def until(condition: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
