"""An endpoint whose engine is Triton's vLLM backend: text, streams, ends, seeds, errors, leaving.

What answers is a rule with the backend's tensors; the backend itself takes a GPU, and has not been
asked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors
from tritonclient.grpc import InferenceServerClient

from preprocess.generation.seats import seats
from preprocess.triton.clients import close_clients
from tests.preprocess.generation.test_text_generation import served, until
from tests.text_engine import PROMPT, Asker, asked, fields, three_tokens, tokenizer
from tests.vllm_engine import (
    CHECK,
    NAME,
    VllmServer,
    serving_here,
    serving_in_triton,
    with_numpy_1,
)
from transformer_serving.contract.generation import Options, Sampling
from transformer_serving.contract.vllm.tensors import sampling_of

pytestmark = pytest.mark.slow
SERVERS = ("here", "triton") if CHECK in os.environ else ("here",)


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmServer]:
    if request.param == "here":
        with serving_here() as found:
            yield found
        return
    with serving_in_triton(tmp_path_factory.mktemp("vllm"), with_numpy_1()) as found:
        yield found


@pytest.fixture
def address(server: VllmServer) -> str:
    return server.address


@pytest.fixture
def vllm(settings: Any) -> Asker:
    return Asker(NAME, fields(engine="vllm"))


async def test_text_and_a_stream_of_it(vllm: Asker) -> None:
    assert await vllm.answer(asked(4)) == {"text": "w20 w21 w22 w20 w21 w22 w20"}
    assert await vllm.events(asked(3, seed=5)) == three_tokens()


async def test_several_tokens_of_one_message_are_counted(vllm: Asker) -> None:
    body = {"text": "every w30", "parameters": {"max_new_tokens": 7}}
    events = await vllm.events(body)
    assert len(events) == 3 + 2
    assert events[-2]["generated_tokens"] == 7


async def test_the_bundles_own_tokens_end_it(vllm: Asker, server: VllmServer) -> None:
    body = {"text": "w20 w21 </s>"}
    assert (await vllm.answer(body))["text"] == "w20 w21 </s> w20 w21"
    assert (await vllm.events(body))[-2]["finish_reason"] == "eos_token"
    ignoring = {**body, "parameters": {"ignore_eos": True, "max_new_tokens": 4}}
    assert (await vllm.answer(ignoring))["text"] == "w20 w21 </s> w20 w21 w20"


async def test_no_end_comes_before_the_least_number_of_tokens(vllm: Asker) -> None:
    body = {"text": "w20 w21 </s>", "parameters": {"min_new_tokens": 4, "max_new_tokens": 9}}
    assert (await vllm.answer(body))["text"] == "w20 w21 </s> w20 w21 w20 w21"


def test_penalties_are_told_by_vllms_names_where_they_are_asked_for() -> None:
    usual = Sampling(False, 1.0, 1.0, 0, 1.0)
    asks = replace(usual, frequency_penalty=-2.0, presence_penalty=0.5, min_new_tokens=20)
    told, plain = (sampling_of(Options(16, (3,), one, 0)) for one in (asks, usual))
    assert told == {
        **plain, "frequency_penalty": -2.0, "presence_penalty": 0.5, "min_tokens": 16,
    }  # fmt: skip


def test_min_p_is_told_where_there_is_something_to_choose() -> None:
    for samples in (True, False):
        usual = Sampling(samples, 1.0, 1.0, 0, 1.0)
        asks = replace(usual, min_p=0.1)
        told, plain = (sampling_of(Options(16, (3,), one, 0)) for one in (asks, usual))
        assert told == {**plain, **({"min_p": 0.1} if samples else {})}


async def test_penalties_and_min_p_get_to_it(vllm: Asker) -> None:
    body = asked(4, frequency_penalty=0.5, presence_penalty=-1)
    assert (await vllm.answer(body))["text"] == "w20 w21 w22 w20 w21 w22 w20"
    drawn = [await vllm.answer(asked(4, min_p=0.1, seed=7)) for _ in range(2)]
    assert drawn[0] == drawn[1] != await vllm.answer(asked(4))


async def test_a_stop_string_ends_it_at_both_ends(vllm: Asker, server: VllmServer) -> None:
    """The engine ends by itself there, so that no stream is cancelled for it."""
    before = len(server.lived())
    body = {"text": "w30 w31", "parameters": {"stop": "1 w", "max_new_tokens": 32}}
    assert (await vllm.answer(body))["text"] == "w30 w31 w30 w3"
    assert (await vllm.events(body))[-2]["finish_reason"] == "stop_sequence"
    await until(lambda: len(server.lived()) == before + 2)
    assert server.lived()[before:] == ["ended 3"] * 2


async def test_a_stop_string_before_the_least_number_ends_it_here(
    vllm: Asker, server: VllmServer
) -> None:
    """vLLM looks for none by then, and is left."""
    before = len(server.lived())
    parameters = {"stop": "1 w", "min_new_tokens": 30, "max_new_tokens": 32}
    body = {"text": "w30 w31", "parameters": parameters}
    assert (await vllm.answer(body))["text"] == "w30 w31 w30 w3"
    await until(lambda: len(server.lived()) == before + 1)
    assert server.lived()[-1] != "ended 3"


async def test_seeds_repeat_and_sequences_have_their_own(vllm: Asker) -> None:
    body = asked(4, do_sample=True, top_k=0, num_return_sequences=3, seed=7)
    rows = await vllm.answer(body)
    alone = [await vllm.answer(asked(4, do_sample=True, seed=7 + at)) for at in range(3)]
    assert rows == alone
    assert len({row["text"] for row in rows}) == 3


async def test_log_probabilities_where_they_were_asked_for(vllm: Asker) -> None:
    body = {"model": NAME, "prompt": PROMPT, "max_tokens": 2, "logprobs": 1, "temperature": 0}
    answer = await vllm.answer(body, "openai.completions")
    assert answer["choices"][0]["logprobs"]["token_logprobs"] == [-1.5, -0.5]
    without = await vllm.answer({**body, "logprobs": None}, "openai.completions")
    assert without["choices"][0]["logprobs"] is None


async def test_a_conversation_is_the_templates_text(vllm: Asker) -> None:
    body = {
        "messages": [{"role": "user", "content": "w40 w41"}],
        "parameters": {"max_new_tokens": 2},
    }
    assert (await vllm.answer(body))["text"].split() == ["w40", "w41"]


async def test_what_is_cut_is_sent_as_the_text_that_is_left(vllm: Asker) -> None:
    long = {"text": "w30 w31 w32", "parameters": {"max_new_tokens": 2, "truncate": 2}}
    assert (await vllm.answer(long))["text"] == "w30 w31 w32 w31 w32"
    status, error = await vllm.refusal({"text": " ".join(["w30"] * 64)})
    assert (status, error["code"], error["limit"], error["got"]) == (413, "too_large", 64, 65)


async def test_tokens_that_no_text_gives_are_refused(settings: Any) -> None:
    """The tokenizer puts <s> before every text, and the end of one has none."""
    made = Tokenizer.from_str(tokenizer().decode())
    made.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 2)])
    special = Asker(NAME, fields(engine="vllm"), lambda: str(made.to_str()).encode())
    cut = {"text": "w30 w31 w32", "parameters": {"max_new_tokens": 2, "truncate": 2}}
    status, error = await special.refusal(cut)
    assert (status, error["code"]) == (422, "impossible")
    assert "takes a text, and none gives these tokens" in error["message"]
    assert seats.taken == 0


async def test_what_the_engine_refuses_has_a_status(vllm: Asker) -> None:
    for stream in (False, True):
        status, error = await vllm.refusal({"text": "refuse w30", "stream": stream})
        assert (status, error["code"]) == (502, "engine_failed")
    assert seats.taken == 0


async def test_an_engine_with_another_tokenizer_is_found_out(vllm: Asker) -> None:
    for stream in (False, True):
        status, error = await vllm.refusal({"text": "cache w30", "stream": stream})
        assert (status, error["code"]) == (502, "engine_failed")
        assert "other tokens of the prompt than the bundle's tokenizer" in error["message"]
    assert seats.taken == 0


async def test_an_error_in_the_middle_is_an_event_and_the_end(vllm: Asker) -> None:
    events = await vllm.events({"text": "fail w30"})
    assert [row["text"] for row in events[:-1]] == [" fail", " w30", " fail"]
    name, error = events[-1]
    assert (name, error["code"]) == ("error", "engine_failed")
    assert await vllm.refusal({"text": "fail w30"}) == (502, error)


async def test_a_silence_is_given_up(settings: Any, vllm: Asker) -> None:
    settings(TOKEN_GAP_S="0.3")
    impatient = Asker(NAME, fields(engine="vllm"))
    name, error = (await impatient.events({"text": "hang w30"}))[-1]
    assert (name, error["code"], error["limit"]) == ("error", "unavailable", "0.3 s")
    assert seats.taken == 0


async def test_a_caller_that_leaves_cancels_its_stream(vllm: Asker, server: VllmServer) -> None:
    before = len(server.lived())
    body = {"text": "slow w30", "parameters": {"max_new_tokens": 32}, "stream": True}
    response = await vllm.ask(body)
    await served(response, leaves_after=3)
    await until(lambda: len(server.lived()) == before + 1)
    assert server.lived()[-1].startswith("cancelled")
    assert seats.taken == 0


@pytest.mark.skipif(CHECK not in os.environ, reason="needs a Triton with numpy 1: make check-vllm")
async def test_what_has_ended_or_was_left_holds_nothing_in_triton(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At their end, by a stop string, and left in the middle, where the stream is cancelled."""
    with serving_in_triton(tmp_path / "triton", with_numpy_1()) as server:
        monkeypatch.setenv("TRANSFORMER_SERVING_TRITON_GRPC", server.address)
        ended = Asker(NAME, fields(engine="vllm"))
        for stop in ("never", "w21"):
            for _ in range(20):
                body = asked(6, stop=[stop])
                await asyncio.gather(*(ended.answer(body) for _ in range(15)))
        slow = {"text": "slow w30", "parameters": {"max_new_tokens": 32}, "stream": True}
        for _ in range(10):
            responses = await asyncio.gather(*(ended.ask(slow) for _ in range(10)))
            await asyncio.gather(*(served(one, leaves_after=3) for one in responses))
        await until(lambda: len(server.lived()) == 700)
        client = InferenceServerClient(server.address)
        client.unload_model(NAME)

        def unloaded() -> bool:
            rows = client.get_model_repository_index().models
            return all(row.state == "UNAVAILABLE" for row in rows)

        await until(unloaded)
        close_clients()
