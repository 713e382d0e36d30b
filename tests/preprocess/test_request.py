from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from preprocess.answers import TASKS
from preprocess.request import Request, read_body
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.errors import ServingError


@pytest.fixture
def read(endpoint_json: str) -> Any:
    endpoint = read_endpoint(endpoint_json)
    task = TASKS[endpoint.task](endpoint)
    return lambda body: read_body(body, task, endpoint.limits)


def refusal(read: Any, body: Any) -> ServingError:
    with pytest.raises(ServingError) as caught:
        read(body)
    return caught.value


def test_a_text_a_list_and_raw_bytes(read: Any) -> None:
    assert read({"text": "one"}).texts == ("one",)
    assert not read({"text": "one"}).many
    assert read({"text": ["one", "two"]}).many
    assert read({"inputs": ["one"]}).pipeline_shape
    assert read("käse".encode()).texts == ("käse",)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (None, 400, None),
        (["a"], 400, None),
        (b"\xff\xfe", 400, None),
        ({}, 400, "text"),
        ({"text": None}, 400, "text"),
        ({"text": 3}, 400, "text"),
        ({"text": float("nan")}, 400, "text"),
        ({"text": {"a": 1}}, 400, "text"),
        ({"text": []}, 400, "text"),
        ({"text": ["a", 1]}, 400, "text"),
        ({"text": "\ud800"}, 400, "text"),
        ({"text": "a", "colour": "red"}, 400, None),
        ({"text": "a", "inputs": "b"}, 400, None),
        ({"text": "a", "text_pair": ["b"]}, 400, "text_pair"),
        ({"text": ["a", "b"], "text_pair": ["b"]}, 400, "text_pair"),
        ({"text": "a", "parameters": []}, 400, "parameters"),
        ({"text": "a", "parameters": {"temperature": 1}}, 400, "parameters"),
        ({"text": "a", "parameters": {"top_k": 0}}, 400, "top_k"),
        ({"text": "a", "parameters": {"function_to_apply": "relu"}}, 400, "function_to_apply"),
        ({"text": "a", "timeout_ms": 0}, 400, "timeout_ms"),
        ({"text": "a", "timeout_ms": True}, 400, "timeout_ms"),
        ({"text": "a", "truncate": "yes"}, 400, "truncate"),
        ({"text": ["a"] * 101}, 413, "text"),
        ({"text": "a" * 10_001}, 413, "text"),
    ],
)
def test_a_bad_body_names_its_field(read: Any, body: Any, status: int, field: str | None) -> None:
    error = refusal(read, body)
    assert error.kind.status == status
    assert error.field == field


@pytest.mark.parametrize("field", ["text", "inputs"])
def test_a_parameter_beside_the_text_is_told_where_it_stands(read: Any, field: str) -> None:
    error = refusal(read, {field: "a", "top_k": 2})
    assert (error.kind.code, error.field) == ("invalid_field", "top_k")
    assert str(error) == "'top_k' is a parameter; put it into the object 'parameters'"


def test_sizes_are_given_and_the_callers_text_never(read: Any) -> None:
    error = refusal(read, {"text": "secret" * 2_000})
    assert (error.limit, error.got) == (10_000, 12_000)
    assert "secret" not in str(error.body())
    assert "secret" not in str(refusal(read, {"text": "a", "secret": "b"}).body())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
FIELDS = st.sampled_from(["text", "inputs", "text_pair", "parameters", "timeout_ms", "truncate"])
GOOD: list[dict[str, Any]] = [
    {"text": "a"},
    {"inputs": ["a", "b"]},
    {"text": "a", "text_pair": "b"},
]
# One that is read, with any value at any field.
NEAR = st.builds(
    lambda good, more: {**good, **more},
    st.sampled_from(GOOD),
    st.dictionaries(FIELDS, JSON | st.sampled_from(["a", True, 900, {"top_k": 1}]), max_size=2),
)


def test_every_body_is_a_request_or_a_refusal() -> None:
    endpoint = read_endpoint(ENDPOINT)
    task = TASKS[endpoint.task](endpoint)
    seen = set()

    @given(near=NEAR, far=JSON | st.dictionaries(FIELDS, JSON))
    def check(near: Any, far: Any) -> None:
        for body in (near, far):
            try:
                outcome: Any = read_body(body, task, endpoint.limits)
            except ServingError as error:
                outcome = error
            seen.add(type(outcome))
            if isinstance(outcome, ServingError):
                assert outcome.kind.status in (400, 413)
            else:
                assert outcome.texts
                assert all(isinstance(text, str) for text in outcome.texts)

    check()
    assert seen == {Request, ServingError}


ENDPOINT = """{"schema": 1, "bundle_version": 2, "bundle_hash": "x", "task": "text-classification",
"inputs": [{"name": "ids", "role": "input_ids", "dtype": "INT64"}],
"head": "sequence", "outputs": [{"name": "output", "dtype": "FP32", "dims": [2]}],
"tokens": {"max_length": 8, "buckets": [8], "pad_id": 0, "pad_token": "", "pad_type_id": 0,
"padding_side": "left", "truncate": true},
"limits": {"max_texts": 9, "max_characters": 99, "max_tokens": 99, "max_batch_size": 4},
"classification": {"labels": ["A", "B"], "problem_type": "multi_label", "activation": "sigmoid"}}"""
