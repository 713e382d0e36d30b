"""Bodies, conversations and prompts, checked before anybody is asked for a token."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from preprocess.generation.prompt import Prompt, read_prompts
from preprocess.generation.request import TextTask, Wanted, read_wanted
from preprocess.threads import OFF_LOOP_CHARACTERS
from preprocess.tokens import Tokenizer
from tests.text_engine import fields, tokenizer
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.generation import Generation, Sampling

PROMPT = "w20 w21"


@pytest.fixture
def endpoint() -> Endpoint:
    return read_endpoint(json.dumps(fields()))


@pytest.fixture
def generation(endpoint: Endpoint) -> Generation:
    assert endpoint.generation is not None
    return endpoint.generation


def read(body: Any, endpoint: Endpoint) -> Wanted:
    assert endpoint.generation is not None
    return read_wanted(body, TextTask(endpoint.generation), endpoint.limits)


def test_what_nobody_says_is_the_models_own(endpoint: Endpoint) -> None:
    wanted = read({"text": PROMPT}, endpoint)
    assert wanted.prompts == (PROMPT,)
    assert (wanted.many, wanted.pipeline_shape, wanted.stream) == (False, False, False)
    parameters = wanted.parameters
    assert parameters.sampling == Sampling(False, 1.0, 1.0, 0, 1.0)
    assert (parameters.max_new_tokens, parameters.sequences, parameters.stop) == (None, 1, ())
    assert wanted.with_prompt


def test_a_parameter_beside_the_prompt_is_told_where_it_stands(endpoint: Endpoint) -> None:
    for body in ({"text": PROMPT}, {"inputs": PROMPT}):
        with pytest.raises(ServingError) as refused:
            read({**body, "max_new_tokens": 4}, endpoint)
        assert refused.value.field == "max_new_tokens"
        assert str(refused.value).endswith("put it into the object 'parameters'")


def test_seeds_are_drawn_anew(endpoint: Endpoint) -> None:
    seeds = {read({"text": PROMPT}, endpoint).parameters.seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(0 <= seed < 2**53 for seed in seeds)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ([], "malformed_body", None),
        ({}, "invalid_field", "text"),
        ({"text": PROMPT, "inputs": PROMPT}, "invalid_field", "text"),
        ({"text": PROMPT, "temprature": 1}, "invalid_field", None),
        ({"text": 1}, "invalid_field", "text"),
        ({"text": []}, "invalid_field", "text"),
        ({"text": "\ud800"}, "invalid_field", "text"),
        ({"text": "a" * 10_001}, "too_large", "text"),
        ({"text": ["a"] * 9}, "too_large", "text"),
        ({"text": PROMPT, "stream": 1}, "invalid_field", "stream"),
        ({"text": [PROMPT, PROMPT], "stream": True}, "impossible", "text"),
        ({"text": PROMPT, "timeout_ms": 0}, "invalid_field", "timeout_ms"),
        ({"text": PROMPT, "parameters": 1}, "invalid_field", "parameters"),
        ({"text": PROMPT, "parameters": {"nothing": 1}}, "invalid_field", "parameters"),
        ({"messages": []}, "invalid_field", "messages"),
        ({"messages": [{"role": "user"}]}, "invalid_field", "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "invalid_field", "messages"),
        ({"messages": [{"role": "user", "content": "a" * 10_001}]}, "too_large", "messages"),
        ({"messages": [{"role": "a" * 65, "content": "x"}]}, "invalid_field", "messages"),
        ({"messages": [{"role": "a" * 40, "content": ""}] * 97}, "too_large", "messages"),
        ({"messages": [{"role": "", "content": ""}] * 157}, "too_large", "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "invalid_field", "messages",
        ),
    ],
)  # fmt: skip
def test_a_body_that_is_none_is_refused(
    endpoint: Endpoint, body: Any, code: str, field: str | None
) -> None:
    with pytest.raises(ServingError) as refusal:
        read(body, endpoint)
    assert (refusal.value.kind.code, refusal.value.field) == (code, field)


def test_too_many_prompts_are_told_so(endpoint: Endpoint) -> None:
    most = endpoint.limits.max_texts
    assert len(read({"inputs": [PROMPT] * most}, endpoint).prompts) == most
    with pytest.raises(ServingError, match="too many prompts; send") as refusal:
        read({"inputs": [PROMPT] * (most + 1)}, endpoint)
    error = refusal.value
    assert (error.kind.code, error.field, error.limit) == ("too_large", "inputs", most)
    assert error.got == most + 1


def test_too_many_sequences_are_told_so(endpoint: Endpoint) -> None:
    """A prompt may have 64 whatever the limit of prompts is."""

    def of_each(count: int, prompts: int) -> Wanted:
        parameters = {"num_return_sequences": count}
        return read({"text": [PROMPT] * prompts, "parameters": parameters}, endpoint)

    assert endpoint.limits.max_texts == 8
    assert of_each(8, 8).parameters.sequences == of_each(64, 1).parameters.sequences // 8 == 8
    with pytest.raises(ServingError, match="too many sequences") as refusal:
        of_each(13, 5)
    error = refusal.value
    assert (error.kind.code, error.field) == ("too_large", "num_return_sequences")
    assert (error.limit, error.got) == (64, 65)


@pytest.mark.parametrize("field", ["text", "inputs"])
def test_a_list_of_one_is_streamed(endpoint: Endpoint, field: str) -> None:
    wanted = read({field: [PROMPT], "stream": True}, endpoint)
    assert (wanted.prompts, wanted.stream) == ((PROMPT,), True)
    with pytest.raises(ServingError, match="a stream has one prompt"):
        read({field: [PROMPT, PROMPT], "stream": True}, endpoint)


def test_a_conversation_counts_by_roles_and_messages_too(endpoint: Endpoint) -> None:
    """What many of little make is rendered and tokenized beside the loop, as a long text is."""
    few = read({"messages": [{"role": "user", "content": PROMPT}]}, endpoint)
    assert 0 < few.characters < OFF_LOOP_CHARACTERS
    many = read({"messages": [{"role": "u", "content": ""}] * 100}, endpoint)
    assert OFF_LOOP_CHARACTERS < many.characters <= endpoint.limits.max_characters
    roles = read({"messages": [{"role": "r" * 64, "content": ""}] * 50}, endpoint)
    assert roles.characters - 50 * 64 == 50 * 64


def test_many_short_prompts_count_as_long_ones(endpoint: Endpoint) -> None:
    """Each takes as long as some characters, however short it is."""
    some = replace(endpoint, limits=replace(endpoint.limits, max_texts=1024))
    many = {"text": ["abcd"] * 256}
    assert len(json.dumps(many)) < OFF_LOOP_CHARACTERS < read(many, some).characters
    usual = {"text": ["tea " * 10] * 50}
    assert read(usual, some).characters <= OFF_LOOP_CHARACTERS


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tool_calls", [CALL]), ("function_call", CALL["function"]), ("audio", {"id": "a"}),
        ("images", ["aGk="]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("content", ["", None])
def test_what_a_message_holds_beside_text_is_not_passed_over(
    endpoint: Endpoint, name: str, value: Any, content: str | None
) -> None:
    message = {"role": "assistant", "content": content, name: value}
    with pytest.raises(ServingError, match=f"'{name}' of a message") as refusal:
        read({"messages": [message]}, endpoint)
    assert (refusal.value.kind.code, refusal.value.field) == ("impossible", "messages")


def test_what_clients_send_back_of_an_answer_is_taken(endpoint: Endpoint) -> None:
    """Its client's own object of it, and the text that a tool gave."""
    said: dict[str, Any] = {
        "role": "assistant", "content": "w20", "name": "me", "refusal": None, "annotations": [],
        "audio": None, "function_call": None, "tool_calls": [],
    }  # fmt: skip
    tool = {"role": "tool", "tool_call_id": "1", "content": "w21"}
    wanted = read({"messages": [said, tool]}, endpoint)
    assert wanted.messages == (
        {"role": "assistant", "content": "w20"}, {"role": "tool", "content": "w21"},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0), ("max_new_tokens", 33), ("max_new_tokens", True),
        ("do_sample", 1), ("temperature", 0), ("temperature", 101), ("temperature", True),
        ("top_p", 0), ("top_p", 1.1), ("top_k", -1), ("repetition_penalty", 0),
        ("frequency_penalty", 2.01), ("presence_penalty", -2.01), ("presence_penalty", True),
        ("min_new_tokens", -1), ("min_new_tokens", 33), ("min_p", -0.1), ("min_p", 1.1),
        ("seed", -1), ("seed", 2**63), ("stop", ""), ("stop", ["a"] * 17), ("stop", "a" * 257),
        ("stop", [1]), ("num_return_sequences", 0), ("truncate", 0), ("return_full_text", "no"),
    ],
)  # fmt: skip
def test_a_parameter_out_of_its_range_is_named(endpoint: Endpoint, name: str, value: Any) -> None:
    with pytest.raises(ServingError) as refusal:
        read({"text": PROMPT, "parameters": {name: value}}, endpoint)
    assert refusal.value.kind.code == "invalid_field"
    assert refusal.value.field == name
    assert name in refusal.value.message


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("max_length", "send max_new_tokens"), ("min_length", "send min_new_tokens"),
        ("eos_token_id", "send more ends as texts in stop"), ("no_repeat_ngram_size", "leave it"),
    ],
)  # fmt: skip
def test_what_generate_takes_and_an_endpoint_does_not_is_told_what_to_send(
    endpoint: Endpoint, name: str, told: str
) -> None:
    with pytest.raises(ServingError, match=told) as refusal:
        read({"text": PROMPT, "parameters": {name: 3}}, endpoint)
    assert (refusal.value.kind.code, refusal.value.field) == ("invalid_field", name)


def test_what_changes_no_text_is_taken(endpoint: Endpoint) -> None:
    more = {"pad_token_id": 3, "padding": True, "batch_size": 4, "seed": 1}
    found = read({"text": PROMPT, "parameters": more}, endpoint)
    assert found == read({"text": PROMPT, "parameters": {"seed": 1}}, endpoint)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "seed"]), inner)
    ),
    max_leaves=8,
)
FIELDS = ("text", "inputs", "messages", "parameters", "stream", "timeout_ms", "x")


GOOD: list[dict[str, Any]] = [
    {"text": PROMPT},
    {"inputs": [PROMPT, "w22"], "parameters": {"max_new_tokens": 4}},
    {"messages": [{"role": "user", "content": PROMPT}]},
]
# One that is read, with any value at any field.
NEAR = st.builds(
    lambda good, more: {**good, **more},
    st.sampled_from(GOOD),
    st.dictionaries(
        st.sampled_from(FIELDS), JSON | st.sampled_from([PROMPT, True, 900]), max_size=2
    ),
)


def test_any_body_is_read_or_refused(endpoint: Endpoint, generation: Generation) -> None:
    seen = set()

    @given(near=NEAR, far=st.dictionaries(st.sampled_from(FIELDS), JSON) | JSON)
    def check(near: Any, far: Any) -> None:
        for body in (near, far):
            try:
                wanted = read(body, endpoint)
                assert wanted.prompts or wanted.messages
                read_prompts(wanted, TOKENIZER, generation, endpoint.limits, with_text=False)
                seen.add("read")
            except ServingError:
                seen.add("refused")

    check()
    assert seen == {"read", "refused"}


TOKENIZER: Tokenizer


@pytest.fixture(autouse=True)
def _of_all(endpoint: Endpoint) -> None:
    global TOKENIZER
    TOKENIZER = Tokenizer(tokenizer(), endpoint.tokens)


def prompts(body: Any, endpoint: Endpoint) -> list[Prompt]:
    assert endpoint.generation is not None
    wanted = read(body, endpoint)
    return read_prompts(wanted, TOKENIZER, endpoint.generation, endpoint.limits, with_text=False)


def test_prompts_are_tokens_and_the_room_that_is_left(endpoint: Endpoint) -> None:
    assert prompts({"text": PROMPT}, endpoint) == [Prompt([20, 21], 16)]
    long = " ".join(["w20"] * 61)
    # Longer than the tokenizer's own limit, too, every token counts.
    assert prompts({"text": long}, endpoint)[0].new_tokens == 3
    cut = {"text": long + " w30", "parameters": {"truncate": 2, "max_new_tokens": 32}}
    assert prompts(cut, endpoint) == [Prompt([20, 30], 32)]


@pytest.mark.parametrize(("words", "new", "got"), [(64, None, 65), (100, None, 101), (60, 5, 65)])
def test_what_has_no_room_is_told_both_numbers(
    endpoint: Endpoint, words: int, new: int | None, got: int
) -> None:
    body = {"text": " ".join(["w20"] * words), "parameters": {"max_new_tokens": new}}
    with pytest.raises(ServingError, match=f"prompt's {words} tokens and {new or 1} ") as refusal:
        prompts(body, endpoint)
    error = refusal.value
    assert (error.kind.code, error.limit, error.got) == ("too_large", 64, got)


def test_all_prompts_together_have_no_more_tokens_than_a_request_may(endpoint: Endpoint) -> None:
    """Counted one by one, as they are kept: what stands behind the limit is not looked at."""
    few = replace(endpoint, limits=replace(endpoint.limits, max_tokens=100))
    texts = [" ".join(["w20"] * words) for words in (60, 41, 64)]
    with pytest.raises(ServingError) as refusal:
        prompts({"text": texts}, few)
    error = refusal.value
    assert (error.kind.code, error.field) == ("too_large", "text")
    assert (error.limit, error.got) == (100, 101)
    assert len(prompts({"text": texts, "parameters": {"truncate": 30}}, few)) == 3


def test_a_prompt_without_tokens_is_impossible(endpoint: Endpoint) -> None:
    with pytest.raises(ServingError, match="no tokens"):
        prompts({"text": ""}, endpoint)


@pytest.mark.parametrize("field", ["text", "inputs", "messages"])
def test_a_prompt_is_named_by_the_field_that_it_came_in(endpoint: Endpoint, field: str) -> None:
    for text in ("", " ".join(["w20"] * 64)):
        prompt = [{"role": "user", "content": text}] if field == "messages" else text
        with pytest.raises(ServingError) as refusal:
            prompts({field: prompt}, endpoint)
        assert refusal.value.field == field


def test_a_conversations_special_tokens_are_not_added_twice(endpoint: Endpoint) -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]}
    wanted = read(body, endpoint)
    assert not wanted.with_prompt
    assert prompts(body, endpoint)[0].ids == [20, 21]
