"""Other protocols' bodies for text, and answers in their forms, whole and as events."""

from __future__ import annotations

import threading
from typing import Any

import orjson
import pytest

from preprocess.dialects import OPERATIONS
from preprocess.dialects.generated import OPERATIONS as GENERATED
from preprocess.generation.dialects import WAYS
from preprocess.generation.dialects.openai_voice import CompletionVoice
from preprocess.generation.seats import seats
from preprocess.threads import FEW_PIECES
from tests.text_engine import PROMPT, VERSION, Asker
from transformer_serving.contract.heads import GENERATION

pytestmark = pytest.mark.slow
NEXT = " w20 w21 w22"
COMPLETIONS, CHAT = "openai.completions", "openai.chat"
TGI_CHAT, TGI_COMPLETIONS = "openai.tgi_chat", "openai.tgi_completions"
GREEDY = {"model": "text", "temperature": 0, "max_tokens": 3}
MESSAGES = [{"role": "user", "content": PROMPT}]


def test_every_operation_of_text_has_a_way() -> None:
    assert {row.name for row in GENERATED} <= set(WAYS)
    known = {name for name, row in OPERATIONS.items() if GENERATION in (row.tasks or ())}
    assert known | {"v2.infer", "ours"} == set(WAYS)


async def test_what_others_answer_is_refused(text: Asker) -> None:
    status, error = await text.refusal({"input": "x", "model": "text"}, "openai.embeddings")
    assert (status, error["error"]["code"]) == (422, "refused")


async def test_a_completion(text: Asker) -> None:
    answer = await text.answer({**GREEDY, "prompt": PROMPT, "user": "me"}, COMPLETIONS)
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "text"
    assert answer["choices"] == [
        {"index": 0, "text": NEXT, "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6}


# What @huggingface/inference 4.13 asks of textGeneration, with an endpointUrl, and its stream.
HUGGINGFACE_JS: dict[str, Any] = {
    "model": "http://127.0.0.1:8080/hf/text", "max_tokens": 3, "do_sample": False,
    "return_full_text": False, "details": True, "typical_p": 1, "prompt": PROMPT,
}  # fmt: skip


async def test_a_completion_takes_tgis_parameters_below_its_addresses(text: Asker) -> None:
    answer = await text.answer(HUGGINGFACE_JS, TGI_COMPLETIONS)
    assert (answer["choices"][0]["text"], answer["model"]) == (NEXT, HUGGINGFACE_JS["model"])
    *chunks, done = await text.events({**HUGGINGFACE_JS, "stream": True}, TGI_COMPLETIONS)
    assert ("".join(row["choices"][0]["text"] for row in chunks), done) == (NEXT, "[DONE]")
    sampled = {**HUGGINGFACE_JS, "do_sample": None, "seed": 11}
    assert (await text.answer(sampled, TGI_COMPLETIONS))["choices"][0]["text"] != NEXT
    more = {"return_full_text": True, "truncate": 2}
    answer = await text.answer({**HUGGINGFACE_JS, **more}, TGI_COMPLETIONS)
    assert answer["choices"][0]["text"].startswith(PROMPT)
    assert answer["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(
    ("more", "status", "field"),
    [
        ({"typical_p": 0.95}, 422, "typical_p"),
        ({"watermark": True}, 422, "watermark"),
        ({"details": 1}, 400, "details"),
        ({"echo": True, "return_full_text": 1}, 400, "return_full_text"),
        ({"nothing": 1}, 400, None),
    ],
)
async def test_a_completion_at_tgi_refuses_what_tgis_own_does(
    text: Asker, more: dict[str, Any], status: int, field: str | None
) -> None:
    got, error = await text.refusal({**HUGGINGFACE_JS, **more}, TGI_COMPLETIONS)
    assert (got, error["error"]["param"]) == (status, field)


@pytest.mark.parametrize("name", ["do_sample", "details", "typical_p", "truncate"])
async def test_a_completion_elsewhere_knows_none_of_them(text: Asker, name: str) -> None:
    body = {**GREEDY, "prompt": PROMPT, name: HUGGINGFACE_JS.get(name, 2)}
    assert (await text.refusal(body, COMPLETIONS))[0] == 400


async def test_several_completions(text: Asker) -> None:
    body = {**GREEDY, "prompt": [PROMPT, "w30"], "n": 2, "echo": True}
    answer = await text.answer(body, COMPLETIONS)
    texts = [row["text"] for row in answer["choices"]]
    assert texts == [PROMPT + NEXT] * 2 + ["w30 w30 w30 w30"] * 2
    assert [row["index"] for row in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"] == {"prompt_tokens": 4, "completion_tokens": 12, "total_tokens": 16}


async def test_a_completion_in_chunks(text: Asker) -> None:
    body = {
        **GREEDY, "prompt": PROMPT, "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    *chunks, usage, done = await text.events(body, COMPLETIONS)
    assert done == "[DONE]"
    assert "".join(row["choices"][0]["text"] for row in chunks) == NEXT
    assert [row["choices"][0]["finish_reason"] for row in chunks] == [None] * 3 + ["length"]
    assert all(row["usage"] is None and row["id"] == usage["id"] for row in chunks)
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 6)


async def test_a_chat(text: Asker) -> None:
    answer = await text.answer({**GREEDY, "messages": MESSAGES}, CHAT)
    assert answer["object"] == "chat.completion"
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": NEXT, "refusal": None}
    status, error = await text.refusal(
        {**GREEDY, "messages": [{"role": "system", "content": "x"}]}, CHAT
    )
    assert (status, error["error"]["param"]) == (422, "messages")
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    status, error = await text.refusal({**GREEDY, "messages": [*MESSAGES, called]}, CHAT)
    assert (status, error["error"]["param"]) == (422, "messages")
    assert "'tool_calls' of a message" in error["error"]["message"]


async def test_a_chat_in_chunks(text: Asker) -> None:
    body = {**GREEDY, "messages": MESSAGES, "stream": True, "n": 2, "max_completion_tokens": 2}
    del body["max_tokens"]
    begin, *chunks, done = await text.events(body, CHAT)
    assert [row["delta"]["role"] for row in begin["choices"]] == ["assistant"] * 2
    for at in range(2):
        rows = [row["choices"][0] for row in chunks if row["choices"][0]["index"] == at]
        assert "".join(row["delta"].get("content", "") for row in rows) == " w20 w21"
        assert rows[-1]["finish_reason"] == "length"
    assert done == "[DONE]"


@pytest.mark.parametrize("operation", [COMPLETIONS, CHAT, TGI_CHAT])
async def test_every_answer_has_the_fingerprint_of_its_bundle(text: Asker, operation: str) -> None:
    prompt = {"prompt": PROMPT} if operation == COMPLETIONS else {"messages": MESSAGES}
    body = {**GREEDY, **prompt, "stream_options": {"include_usage": True}}
    *chunks, _ = await text.events({**body, "stream": True}, operation)
    rows = [await text.answer(body, operation), *chunks]
    assert {row["system_fingerprint"] for row in rows} == {f"fp_{VERSION}"}


async def test_a_chat_of_tgi_has_a_role_in_each_chunk(text: Asker) -> None:
    """As its client `text_generation` reads them: classes with these fields, none of them optional;
    OpenAI's own would make one word of all roles."""
    body = {**GREEDY, "messages": MESSAGES}
    *chunks, done = await text.events({**body, "stream": True}, TGI_CHAT)
    assert done == "[DONE]"
    deltas = [choice["delta"] for row in chunks for choice in row["choices"]]
    assert {(row["role"], row["tool_calls"]) for row in deltas} == {("assistant", None)}
    assert "".join(row["content"] for row in deltas) == NEXT
    *chunks, _ = await text.events({**body, "stream": True}, CHAT)
    assert [row["choices"][0]["delta"].get("role") for row in chunks] == ["assistant"] + [None] * 4
    whole = [await text.answer(body, operation) for operation in (CHAT, TGI_CHAT)]
    assert whole[0]["choices"] == whole[1]["choices"]


async def test_logprobs_are_the_chosen_tokens(text: Asker) -> None:
    answer = await text.answer({**GREEDY, "prompt": PROMPT, "logprobs": 1}, COMPLETIONS)
    listed = answer["choices"][0]["logprobs"]
    assert listed["tokens"] == [" w20", " w21", " w22"]
    assert listed["token_logprobs"] == [-1.5, -0.5, -1.0]
    assert listed["text_offset"] == [0, 4, 8]
    answer = await text.answer({**GREEDY, "messages": MESSAGES, "logprobs": True}, CHAT)
    row = answer["choices"][0]["logprobs"]["content"][0]
    assert row == {"token": " w20", "logprob": -1.5, "bytes": list(b" w20"), "top_logprobs": []}
    status, _ = await text.refusal({**GREEDY, "prompt": PROMPT, "logprobs": 5}, COMPLETIONS)
    assert status == 422


@pytest.mark.parametrize(("n", "is_long"), [(2, False), (12, True)])
async def test_many_logprobs_are_listed_beside_the_loop(
    text: Asker, monkeypatch: pytest.MonkeyPatch, n: int, is_long: bool
) -> None:
    made_in = set()
    listed = CompletionVoice.listed

    def recorded(*given: Any) -> Any:
        made_in.add(threading.current_thread())
        return listed(*given)

    monkeypatch.setattr(CompletionVoice, "listed", recorded)
    body = {**GREEDY, "prompt": PROMPT, "logprobs": 1, "n": n, "max_tokens": 32}
    choices = (await text.answer(body, COMPLETIONS))["choices"]
    names = [[" w20", " w21", " w22"][at % 3] for at in range(32)]
    assert [row["logprobs"]["tokens"] for row in choices] == [names] * n
    assert (n * 32 > FEW_PIECES) is is_long
    assert (threading.main_thread() not in made_in) is is_long


async def test_offsets_are_places_in_the_answers_text_streamed_or_not(text: Asker) -> None:
    body = {**GREEDY, "prompt": PROMPT, "logprobs": 1, "n": 2, "max_tokens": 12}
    whole = (await text.answer(body, COMPLETIONS))["choices"]
    places = [4 * at for at in range(12)]
    assert [row["logprobs"]["text_offset"] for row in whole] == [places] * 2
    for row in whole:
        tokens = row["logprobs"]["tokens"]
        assert [row["text"][at : at + 4] for at in places] == tokens
    chunks = (await text.events({**body, "stream": True}, COMPLETIONS))[:-1]
    rows = [row for chunk in chunks for row in chunk["choices"] if row["logprobs"]]
    for at in range(2):
        told = [row["logprobs"]["text_offset"] for row in rows if row["index"] == at]
        assert [one for offsets in told for one in offsets] == places


@pytest.mark.parametrize("first", ["w20", "every"])
async def test_offsets_are_the_tokens_own_where_a_stop_string_holds_text_back(
    text: Asker, first: str
) -> None:
    body = {
        **GREEDY, "prompt": f"{first} w21 w22 w23", "logprobs": 1, "stop": ["w21 w29"],
        "max_tokens": 8,
    }  # fmt: skip
    [row] = (await text.answer(body, COMPLETIONS))["choices"]
    offsets = row["logprobs"]["text_offset"]
    for at, token in zip(offsets, row["logprobs"]["tokens"], strict=True):
        assert row["text"][at : at + len(token)] == token
    chunks = (await text.events({**body, "stream": True}, COMPLETIONS))[:-1]
    told = [row["logprobs"] for chunk in chunks for row in chunk["choices"] if row["logprobs"]]
    assert [one for listed in told for one in listed["text_offset"]] == offsets
    # What is behind the text that is answered has its place there too.
    [row] = (await text.answer({**body, "stop": ["w22 w23"]}, COMPLETIONS))["choices"]
    assert row["text"] == f" {first} w21 "
    assert row["logprobs"]["text_offset"] == offsets[:4]


@pytest.mark.parametrize("together", [False, True])
async def test_what_is_behind_a_stop_string_is_not_counted_however_it_came(
    text: Asker, together: bool
) -> None:
    """Of `every` three tokens are one message."""
    first = "every" if together else "w30"
    body = {**GREEDY, "prompt": f"{first} w20 w21 w22", "stop": ["w20"], "logprobs": 1}
    answer = await text.answer({**body, "max_tokens": 9}, COMPLETIONS)
    assert answer["choices"][0]["text"] == f" {first} "
    assert answer["choices"][0]["logprobs"]["tokens"] == [f" {first}", " w20"]
    assert answer["usage"]["completion_tokens"] == 2
    asked = {"inputs": body["prompt"], "parameters": {**DETAILS, "stop": ["w20"]}}
    details = (await text.answer(asked, "tgi.generate"))["details"]
    assert (details["generated_tokens"], len(details["tokens"])) == (2, 2)


async def test_sampling_is_openais_default_and_negative_seeds_are_taken(text: Asker) -> None:
    sampled = {"model": "text", "prompt": PROMPT, "max_tokens": 4, "seed": -3}
    one = await text.answer(sampled, COMPLETIONS)
    assert one["choices"] == (await text.answer(sampled, COMPLETIONS))["choices"]
    assert one["choices"][0]["text"] != NEXT + " w20"


async def test_stop_and_eos_are_both_stop(text: Asker) -> None:
    body = {**GREEDY, "prompt": PROMPT, "stop": [" w21"]}
    answer = await text.answer(body, COMPLETIONS)
    assert answer["choices"][0] == {
        "index": 0, "text": " w20", "logprobs": None, "finish_reason": "stop"
    }  # fmt: skip
    answer = await text.answer({**GREEDY, "prompt": "w30 </s>"}, COMPLETIONS)
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("more", "status", "field"),
    [
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_tokens": 33}, 400, "max_tokens"),
        ({"max_completion_tokens": 0}, 400, "max_completion_tokens"),
        ({"max_completion_tokens": None, "max_tokens": 0}, 400, "max_tokens"),
        ({"n": 0}, 400, "n"),
        ({"top_p": 0, "temperature": 0.5}, 400, "top_p"),
        ({"model": "m" * 513}, 400, "model"),
        ({"model": 1}, 400, "model"),
        ({"prompt": "w20 " * 64}, 413, "prompt"),
        ({"prompt": [1, 2]}, 400, "prompt"),
        ({"prompt": None}, 400, "prompt"),
        ({"suffix": "x"}, 422, "suffix"),
        ({"best_of": 2}, 422, "best_of"),
        ({"echo": True, "logprobs": 0}, 422, "logprobs"),
        ({"echo": True, "logprobs": 1}, 422, "logprobs"),
        ({"presence_penalty": 2.1}, 400, "presence_penalty"),
        ({"frequency_penalty": "1"}, 400, "frequency_penalty"),
        ({"logit_bias": {"1": 2}}, 422, "logit_bias"),
        ({"stream_options": 1}, 400, "stream_options"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, 400, "max_completion_tokens"),
        ({"min_tokens": "2", "ignore_eos": True}, 400, "min_tokens"),
        ({"min_tokens": 33}, 400, "min_tokens"),
        ({"min_p": 1.1}, 400, "min_p"),
        ({"presence_penalty": 0.1}, 422, "presence_penalty"),
        ({"length_penalty": 2}, 422, "length_penalty"),
        ({"stop_token_ids": [3]}, 422, "stop_token_ids"),
        ({"nothing": 1}, 400, None),
        ({"prompt": "full"}, 503, None),
    ],
)
async def test_errors_are_openais(
    text: Asker, more: dict[str, Any], status: int, field: str | None
) -> None:
    body = {**GREEDY, "prompt": PROMPT, **more}
    got, error = await text.refusal(body, COMPLETIONS)
    assert (got, error["error"]["param"]) == (status, field)
    assert set(error["error"]) == {"message", "type", "param", "code"}


async def test_too_many_sequences_are_told_in_the_callers_words(text: Asker) -> None:
    body = {**GREEDY, "prompt": [PROMPT] * 8, "n": 9}
    status, error = await text.refusal(body, COMPLETIONS)
    assert (status, error["error"]["param"]) == (413, "n")
    assert "each with 'n'," in error["error"]["message"]


@pytest.mark.parametrize(
    ("operation", "prompt", "refused"),
    [
        (CHAT, "messages", ("tools", "functions", "audio", "logit_bias", "suffix")),
        (COMPLETIONS, "prompt", ("suffix", "best_of", "length_penalty")),
        ("v2.generate", "text_input", ("bad_words", "beam_width")),
    ],
)
async def test_an_unknown_field_is_told_of_none_that_would_be_refused(
    text: Asker, operation: str, prompt: str, refused: tuple[str, ...]
) -> None:
    _, error = await text.refusal({prompt: PROMPT, "nothing": 1}, operation)
    told = error["error"] if operation == "v2.generate" else error["error"]["message"]
    listed = told.partition("allowed are ")[2].split(", ")
    assert {prompt, "temperature", "max_tokens"} <= set(listed)
    assert set(refused).isdisjoint(listed)


@pytest.mark.parametrize(
    ("operation", "prompt", "pair"),
    [
        (COMPLETIONS, {"prompt": PROMPT}, ("max_tokens", "max_completion_tokens")),
        (CHAT, {"messages": MESSAGES}, ("max_tokens", "max_completion_tokens")),
        ("v2.generate", {"text_input": PROMPT}, ("stop", "stop_words")),
        ("v2.generate", {"text_input": PROMPT}, ("stop", "parameters")),
    ],
)
async def test_what_nests_too_deep_to_be_compared_is_refused(
    text: Asker, operation: str, prompt: dict[str, Any], pair: tuple[str, str]
) -> None:
    one, other = (orjson.loads("[" * 1000 + "]" * 1000) for _ in range(2))
    body = {**prompt, pair[0]: one, pair[1]: other}
    if pair[1] == "parameters":
        body["parameters"] = {pair[0]: other}
    assert (await text.refusal(body, operation))[0] == 400


async def test_a_chats_errors_name_what_a_chat_has(text: Asker) -> None:
    for messages, status in (("w20 " * 64, 413), ("", 422), (None, 400)):
        said = None if messages is None else [{"role": "user", "content": messages}]
        got, error = await text.refusal({**GREEDY, "messages": said}, CHAT)
        assert (got, error["error"]["param"]) == (status, "messages")
        assert "'text'" not in error["error"]["message"]


NOTHING_OF_VLLM: dict[str, Any] = {
    "min_tokens": 0, "min_p": 0.0, "skip_special_tokens": True, "stop_token_ids": [],
    "frequency_penalty": 0.0, "presence_penalty": 0,
    "length_penalty": 1.0, "spaces_between_special_tokens": True, "use_beam_search": False,
    "include_stop_str_in_output": False, "prompt_logprobs": None,
}  # fmt: skip
MORE_THAN_NONE = {"min_tokens": 3, "ignore_eos": True, "max_tokens": 3}


@pytest.mark.parametrize("more", [NOTHING_OF_VLLM, MORE_THAN_NONE])
@pytest.mark.parametrize(
    ("operation", "prompt"),
    [
        (COMPLETIONS, {"prompt": PROMPT}),
        (CHAT, {"messages": MESSAGES, "add_generation_prompt": True, "verbosity": None}),
        ("v2.generate", {"text_input": PROMPT, "exclude_input_in_output": True}),
    ],
)
async def test_what_asks_for_nothing_is_taken(
    text: Asker, operation: str, prompt: dict[str, Any], more: dict[str, Any]
) -> None:
    """As vLLM's clients and load generators write out its defaults."""
    answer = await text.answer({"max_tokens": 3, "temperature": 0, **prompt, **more}, operation)
    [row] = answer.get("choices", [answer])
    said = (
        row["message"]["content"] if operation == CHAT else row.get("text", row.get("text_output"))
    )
    assert said == NEXT


@pytest.mark.parametrize(
    "more",
    [
        {"prompt_cache_options": {"mode": "explicit"}}, {"prompt_cache_key": "me"},
        {"prompt_cache_retention": "24h"},
    ],
)  # fmt: skip
async def test_what_is_about_the_callers_cache_is_passed_over(
    text: Asker, more: dict[str, Any]
) -> None:
    assert await text.answer({**GREEDY, "messages": MESSAGES, **more}, CHAT)


async def test_an_error_in_openais_stream_is_its_last_event(text: Asker) -> None:
    body = {**GREEDY, "prompt": "fail w30", "max_tokens": 9, "stream": True}
    assert (await text.events(body, COMPLETIONS))[-1]["error"]["code"] == "engine_failed"
    assert seats.taken == 0


DETAILS = {"max_new_tokens": 3, "details": True, "seed": 4}


async def test_tgi(text: Asker) -> None:
    body = {"inputs": PROMPT, "parameters": DETAILS}
    answer = await text.answer(body, "tgi.generate")
    assert answer["generated_text"] == NEXT
    details = answer["details"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == (
        "length", 3, 4,
    )  # fmt: skip
    assert details["tokens"][0] == {"id": 20, "text": " w20", "logprob": -1.5, "special": False}


@pytest.mark.parametrize("operation", ["tgi.root", "hf.inference"])
async def test_a_server_of_generated_text_begins_with_the_prompt_at_its_root(
    text: Asker, operation: str
) -> None:
    body = {"inputs": PROMPT, "parameters": DETAILS, "options": {"use_cache": False}}
    answer = await text.answer(body, "tgi.generate")
    full = {**answer, "generated_text": PROMPT + NEXT}
    for said, wanted in ((None, full), (True, full), (False, answer)):
        asked = {**body, "parameters": {**DETAILS, "return_full_text": said}}
        assert await text.answer(asked, operation) == [wanted]
    assert await text.answer(body, operation) == [full]
    whole = {**body, "parameters": {**DETAILS, "return_full_text": True}}
    assert await text.answer(whole, "tgi.generate") == full


@pytest.mark.parametrize("prompt", [PROMPT, "every w20 w21 w22"])
async def test_tgis_stream_is_an_event_a_token(text: Asker, prompt: str) -> None:
    body = {"inputs": prompt, "parameters": {"max_new_tokens": 7, "seed": 5}}
    events = await text.events(body, "tgi.generate_stream")
    assert [row["index"] for row in events] == list(range(1, 8))
    told = "".join(row["token"]["text"] for row in events)
    assert [row["generated_text"] for row in events] == [None] * 6 + [told]
    details = events[-1]["details"]
    assert (details["finish_reason"], details["generated_tokens"]) == ("length", 7)
    assert details["input_length"] == len(prompt.split())
    *before, last = await text.events({**body, "stream": True}, "tgi.root")
    assert [*before, {**last, "generated_text": told}] == events
    assert last["generated_text"] == prompt + told


async def test_tgis_stream_ends_at_a_stop_string(text: Asker) -> None:
    body = {"inputs": PROMPT, "parameters": {"stop": ["w22"], "max_new_tokens": 9}}
    events = await text.events(body, "tgi.generate_stream")
    assert events[-1]["generated_text"] == " w20 w21 "
    assert events[-1]["details"]["finish_reason"] == "stop_sequence"


async def test_text_that_comes_with_tgis_end_token_is_not_special(text: Asker) -> None:
    """Clients leave special tokens out, and what might have become a stop string with them."""
    ended = {"inputs": "w20 w21 </s>", "parameters": {"details": True}}
    held = {**ended, "parameters": {"details": True, "stop": ["w21 w22"]}}
    for body, end in ((ended, ("", True)), (held, ("w21", False))):
        events = await text.events(body, "tgi.generate_stream")
        streamed = [row["token"] for row in events]
        listed = (await text.answer(body, "tgi.generate"))["details"]["tokens"]
        for tokens in (streamed, listed):
            assert "".join(one["text"] for one in tokens if not one["special"]) == " w20 w21"
            assert (tokens[-1]["text"], tokens[-1]["special"]) == end


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        ({"max_new_tokens": 0}, 422), ({"nothing": 1}, 422), ({"watermark": True}, 422),
        ({"best_of": 2}, 422), ({"typical_p": 0.5}, 422),
    ],
)  # fmt: skip
async def test_errors_are_tgis(text: Asker, parameters: dict[str, Any], status: int) -> None:
    body = {"inputs": PROMPT, "parameters": parameters}
    got, error = await text.refusal(body, "tgi.generate")
    assert (got, error["error_type"]) == (status, "validation")
    assert set(error) == {"error", "error_type"}


@pytest.mark.parametrize("operation", ["tgi.root", "tgi.generate", "hf.inference"])
async def test_tgi_passes_over_fields_that_it_does_not_know(text: Asker, operation: str) -> None:
    body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 3}}
    more = {"model": "any", "nothing": [1], "text": 1, "timeout_ms": "soon"}
    assert await text.answer({**body, **more}, operation) == await text.answer(body, operation)


@pytest.mark.parametrize("operation", ["tgi.root", "tgi.generate", "hf.inference"])
async def test_tgi_takes_what_vllms_load_generator_sends(text: Asker, operation: str) -> None:
    parameters: dict[str, Any] = {"max_new_tokens": 4, "details": True}
    body = {"inputs": "w20 w21 </s>", "parameters": parameters}
    for ignores, new in ((False, 3), (True, 4)):
        parameters["ignore_eos_token"] = ignores
        answer = await text.answer(body, operation)
        [row] = answer if isinstance(answer, list) else [answer]
        assert row["details"]["generated_tokens"] == new
    parameters["ignore_eos_token"] = "yes"
    status, error = await text.refusal(body, operation)
    assert (status, "ignore_eos_token" in error["error"]) == (
        400 if operation == "hf.inference" else 422, True,
    )  # fmt: skip


@pytest.mark.parametrize("operation", ["tgi.root", "tgi.generate", "hf.inference"])
async def test_a_parameter_that_is_null_is_not_sent(text: Asker, operation: str) -> None:
    """Whoever writes all that a client knows names what another server takes."""
    parameters: dict[str, Any] = {"max_new_tokens": 3}
    more = {"max_time": None, "stop_sequences": None, "adapter_id": None, "top_k": None}
    nulls = {"inputs": PROMPT, "parameters": {**parameters, **more}}
    wanted = await text.answer({"inputs": PROMPT, "parameters": parameters}, operation)
    assert await text.answer(nulls, operation) == wanted


@pytest.mark.parametrize("operation", ["tgi.root", "tgi.generate", "hf.inference"])
async def test_langchains_own_default_is_told_its_option(text: Asker, operation: str) -> None:
    """HuggingFaceEndpoint as it is made with an address alone."""
    parameters: dict[str, Any] = {
        "max_new_tokens": 3, "top_k": None, "top_p": 0.95, "typical_p": 0.95, "temperature": 0.8,
        "repetition_penalty": None, "return_full_text": False, "truncate": None, "stop": [],
        "seed": None, "do_sample": False, "watermark": False,
    }  # fmt: skip
    status, error = await text.refusal({"inputs": PROMPT, "parameters": parameters}, operation)
    assert status == 422
    assert "typical_p is None" in error["error"]
    parameters["typical_p"] = None
    assert await text.answer({"inputs": PROMPT, "parameters": parameters}, operation)


@pytest.mark.parametrize("operation", ["tgi.root", "tgi.generate", "hf.inference"])
async def test_the_prompts_field_is_the_one_that_was_sent(text: Asker, operation: str) -> None:
    for inputs in (5, "", "w20 " * 64):
        _, error = await text.refusal({"inputs": inputs}, operation)
        assert "field inputs" in error["error"]
        assert "text" not in error["error"].split("(")[1]


async def test_tgi_is_overloaded_with_429_and_fails_in_its_stream(text: Asker) -> None:
    status, error = await text.refusal({"inputs": "full"}, "tgi.generate")
    assert (status, error["error_type"]) == (429, "overloaded")
    events = await text.events({"inputs": "fail w30"}, "tgi.generate_stream")
    assert events[-1]["error_type"] == "generation"


async def test_nothing_new_is_an_event_of_tgi_all_the_same(text: Asker) -> None:
    [event] = await text.events({"inputs": "</s>"}, "tgi.generate_stream")
    assert (event["generated_text"], event["details"]["finish_reason"]) == ("", "eos_token")


async def test_tgis_tokenize_lists_the_prompts_tokens(text: Asker) -> None:
    """Whatever the parameters are, and however long it is: the engine is not asked."""
    body = {"inputs": "w20 slow", "parameters": {"max_new_tokens": 10**9}}
    wanted = [
        {"id": 20, "text": "w20", "start": 0, "stop": 3},
        {"id": 4, "text": "slow", "start": 4, "stop": 8},
    ]
    assert await text.answer(body, "tgi.tokenize") == wanted
    assert await text.answer({**body, "add_special_tokens": False}, "tgi.tokenize") == wanted
    assert len(await text.answer({"inputs": "w20 " * 100}, "tgi.tokenize")) == 100
    # Places are those of UTF-8.
    told = await text.answer({"inputs": "ü w20"}, "tgi.tokenize")
    assert [(row["text"], row["start"], row["stop"]) for row in told] == [
        ("ü", 0, 2),
        ("w20", 3, 6),
    ]
    for wrong in ({"inputs": ["w20"]}, {}, {"inputs": "w20", "add_special_tokens": 1}):
        status, error = await text.refusal(wrong, "tgi.tokenize")
        assert (status, error["error_type"]) == (422, "validation")


async def test_an_end_of_tgi_without_a_token_has_the_text_too(text: Asker) -> None:
    """Of `every` twice the engine's last message has none."""
    body = {"inputs": "every every w20", "parameters": {"max_new_tokens": 4, "seed": 5}}
    *events, end = await text.events(body, "tgi.generate_stream")
    assert [row["generated_text"] for row in events] == [None] * 4
    told = "".join(row["token"]["text"] for row in events)
    assert (end["index"], end["generated_text"]) == (5, told)
    assert (end["token"]["text"], end["token"]["special"]) == ("", True)
    assert end["details"] == {
        "finish_reason": "length", "generated_tokens": 4, "seed": 5, "input_length": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "own"),
    [
        ("tgi.generate", {"inputs": PROMPT}),
        (TGI_CHAT, {"messages": MESSAGES, "temperature": 1}),
        (COMPLETIONS, {"prompt": PROMPT, "temperature": 1}),
    ],
)
async def test_a_seed_is_any_of_64_bits(text: Asker, operation: str, own: dict[str, Any]) -> None:
    """Signed at OpenAI's and vLLM's, without a sign at text-generation-inference's."""
    answers = []
    for seed in (7, 2**63 + 7, 7 - 2**63):
        said = {"parameters": {"seed": seed, "do_sample": True, "details": True}}
        body = {**own, **(said if operation.startswith("tgi.") else {"seed": seed})}
        answer = await text.answer(body, operation)
        answers.append([answer.get("choices"), answer.get("generated_text"), answer.get("details")])
    assert answers[1:] == answers[:1] * 2
    wrong: tuple[Any, ...] = (2**64, -(2**63) - 1, 0.5, "7", True)
    for seed in wrong:
        more = {"parameters": {"seed": seed}} if operation.startswith("tgi.") else {"seed": seed}
        status, _ = await text.refusal({**own, **more}, operation)
        assert status in (400, 422)


@pytest.mark.parametrize("operation", ["tgi.root", "hf.inference"])
async def test_several_prompts_and_sequences_are_rows_as_the_pipeline_has_them(
    text: Asker, operation: str
) -> None:
    parameters = {"max_new_tokens": 1, "return_full_text": False}
    one, other = {"generated_text": " w20"}, {"generated_text": " w30"}
    body = {"inputs": [PROMPT, "w30"], "parameters": parameters}
    assert await text.answer(body, operation) == [[one], [other]]
    body = {"inputs": [PROMPT], "parameters": parameters}
    assert await text.answer(body, operation) == [[one]]
    several = {**parameters, "num_return_sequences": 2}
    body = {"inputs": PROMPT, "parameters": several}
    assert await text.answer(body, operation) == [one] * 2
    body = {"inputs": [PROMPT, "w30"], "parameters": several}
    assert await text.answer(body, operation) == [[one] * 2, [other] * 2]
    detailed = {"inputs": PROMPT, "parameters": {**several, "details": True, "seed": 5}}
    rows = await text.answer(detailed, operation)
    assert [row["details"]["seed"] for row in rows] == [5, 6]


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        ("tgi.generate", "inputs"), ("tgi.generate_stream", "inputs"),
        ("v2.generate", "text_input"), ("v2.generate_stream", "text_input"),
    ],
)  # fmt: skip
async def test_where_one_is_answered_no_other_is_left_out(
    text: Asker, operation: str, field: str
) -> None:
    for prompts in ([PROMPT, "w30"], [PROMPT], []):
        status, error = await text.refusal({field: prompts}, operation)
        assert 400 <= status < 500
        assert field in error["error"]
    assert seats.taken == 0


@pytest.mark.parametrize(
    ("operation", "stream"),
    [
        ("tgi.generate", False), ("tgi.generate_stream", False), ("tgi.root", True),
        ("hf.inference", True),
    ],
)  # fmt: skip
async def test_several_sequences_are_refused_where_one_is_answered(
    text: Asker, operation: str, stream: bool
) -> None:
    more = {"stream": True} if stream else {}
    for sequences, status in ((2, 422), (0, 422), (1, 200), (None, 200)):
        parameters = {"max_new_tokens": 1, "num_return_sequences": sequences}
        response = await text.ask({"inputs": PROMPT, "parameters": parameters, **more}, operation)
        assert response.status_code == status
        if status == 200 and (stream or operation.endswith("stream")):
            response.close()
    assert seats.taken == 0


def tensors(*prompts: str, **parameters: Any) -> dict[str, Any]:
    row = {"name": "args", "shape": [len(prompts)], "datatype": "BYTES", "data": list(prompts)}
    return {"id": "7", "inputs": [row], "parameters": parameters}


async def test_v2_has_a_row_a_prompt_as_mlserver_has(text: Asker) -> None:
    answer = await text.answer(tensors(PROMPT, max_new_tokens=3), "v2.infer")
    assert (answer["model_name"], answer["id"]) == ("text", "7")
    [output] = answer["outputs"]
    assert output["data"] == [f'{{"generated_text":"{PROMPT}{NEXT}"}}']
    answer = await text.answer(tensors(PROMPT, "w30", max_new_tokens=1), "v2.infer")
    assert answer["outputs"][0]["data"] == [
        f'[{{"generated_text":"{PROMPT} w20"}}]', '[{"generated_text":"w30 w30"}]',
    ]  # fmt: skip
    # At /serve/NAME its body says what it is.
    assert (await text.answer(tensors(PROMPT, max_new_tokens=3)))["outputs"] == [output]


async def test_v2_takes_a_parameter_as_the_tensor_that_metadata_names(text: Asker) -> None:
    given = [("do_sample", "BOOL", True), ("temperature", "FP32", 0.7), ("top_p", "FP32", 1.0),
             ("repetition_penalty", "FP32", 1), ("seed", "INT64", 5)]  # fmt: skip
    rows = [
        {"name": name, "datatype": datatype, "shape": [1], "data": [value]}
        for name, datatype, value in given
    ]
    body = tensors(PROMPT, max_new_tokens=3)
    answer = await text.answer({**body, "inputs": body["inputs"] + rows}, "v2.infer")
    own = {name: value for name, _, value in given}
    assert answer == await text.answer(tensors(PROMPT, max_new_tokens=3, **own), "v2.infer")
    rows[1]["data"] = [0]
    status, error = await text.refusal({**body, "inputs": body["inputs"] + rows}, "v2.infer")
    assert (status, error["code"]) == (400, "invalid_field")
    assert "temperature" in error["error"]


async def test_tritons_generate(text: Asker) -> None:
    body = {"text_input": PROMPT, "parameters": {"max_tokens": 3, "temperature": 0}, "id": "9"}
    answer = await text.answer(body, "v2.generate")
    assert answer == {
        "id": "9", "model_name": "text", "model_version": "1", "text_output": PROMPT + NEXT,
    }  # fmt: skip
    without = {"text_input": PROMPT, "max_tokens": 3, "exclude_input_in_output": True}
    assert (await text.answer(without, "v2.generate"))["text_output"] == NEXT
    events = await text.events(body, "v2.generate_stream")
    assert "".join(row["text_output"] for row in events) == NEXT
    status, error = await text.refusal({"text_input": PROMPT, "id": [[]]}, "v2.generate")
    assert (status, "'id'" in error["error"]) == (400, True)
    status, error = await text.refusal({"text_input": 1}, "v2.generate")
    assert (status, error["code"]) == (400, "invalid_field")
    assert "text_input" in error["error"]
    [event] = await text.events({"text_input": "</s>", "id": "9"}, "v2.generate_stream")
    assert event == {**answer, "text_output": ""}
    failed = await text.events({"text_input": "fail w30"}, "v2.generate_stream")
    assert failed[-1]["code"] == "engine_failed"


@pytest.mark.parametrize("inside", [False, True])
async def test_tensorrts_own_example_is_answered(text: Asker, inside: bool) -> None:
    given = {"max_tokens": 3, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 3}
    others: list[dict[str, Any]] = [
        {}, {"stop_words": [], "bad_words": []}, {"stop_words": [""], "bad_words": [""]},
        {"return_log_probs": False, "return_context_logits": False},
        {"return_generation_logits": False},
        {"beam_width": 1, "bad_words": None, "nothing": None},
    ]  # fmt: skip
    for more in others:
        parameters = {**given, **more}
        body = {"text_input": PROMPT, **({"parameters": parameters} if inside else parameters)}
        answer = await text.answer(body, "v2.generate")
        assert answer["text_output"] == PROMPT + NEXT
    stopped = {"text_input": PROMPT, **given, "stop_words": ["w21"]}
    assert (await text.answer(stopped, "v2.generate"))["text_output"] == PROMPT + " w20 "


@pytest.mark.parametrize(
    ("more", "status", "named"),
    [
        ({"bad_words": "tea"}, 422, "bad_words"),
        ({"bad_words": ["tea"]}, 422, "bad_words"),
        ({"bad_words": ["", "tea"]}, 422, "bad_words"),
        ({"return_log_probs": True}, 422, "return_log_probs"),
        ({"beam_width": 2}, 422, "beam_width"),
        ({"end_id": 2}, 422, "end_id, limit 3"),
        ({"end_id": "</s>"}, 400, "end_id"),
        ({"pad_id": []}, 400, "pad_id"),
        ({"stop_words": ["a"] * 17}, 400, "stop_words"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"random_seed": -1}, 400, "random_seed"),
        ({"seed": -1}, 400, "seed"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"max_new_tokens": 0}, 400, "max_new_tokens"),
        ({"id": "i" * 513}, 400, "id"),
        ({"nothing": 1}, 400, ""),
        ({"max_tokens": 1, "max_new_tokens": 5}, 400, "max_tokens"),
        ({"stop": ["tea"], "stop_words": ["teas"]}, 400, "stop_words"),
        ({"temperature": 0.5, "parameters": {"temperature": 0.6}}, 400, "temperature"),
        ({"parameters": {"min_tokens": -1}}, 400, "min_tokens"),
        ({"frequency_penalty": -2.1}, 400, "frequency_penalty"),
        ({"frequency_penalty": 0.1}, 422, "frequency_penalty"),
    ],
)
async def test_what_generate_refuses_by_the_name_that_was_sent(
    text: Asker, more: dict[str, Any], status: int, named: str
) -> None:
    got, error = await text.refusal({"text_input": PROMPT, **more}, "v2.generate")
    assert got == status
    assert not named or f"(field {named}" in error["error"]
    assert "tea" not in error["error"]
