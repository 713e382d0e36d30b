from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from transformer_serving.contract.endpoint import Recorded, read_endpoint
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields


def test_what_is_written_is_read_back(endpoint_json: str) -> None:
    endpoint = read_endpoint(endpoint_json)
    assert read_endpoint(endpoint.to_json()) == endpoint


def test_a_recorded_answer_is_kept_and_may_be_absent(
    endpoint_fields: dict[str, Any],
) -> None:
    older = read_endpoint(json.dumps(endpoint_fields))
    assert older.recorded is None
    assert read_endpoint(older.to_json()) == older
    recorded = {"answer": [{"label": "a", "score": 0.5}], "tolerance": 1}
    newer = read_endpoint(json.dumps({**endpoint_fields, "recorded": recorded}))
    assert newer.recorded == Recorded(recorded["answer"], 1.0)
    assert read_endpoint(newer.to_json()) == newer


def test_a_golden_body_is_kept_and_may_be_absent(endpoint_fields: dict[str, Any]) -> None:
    assert read_endpoint(json.dumps(endpoint_fields)).golden is None
    body = {"query": "tea", "texts": ["a kettle"]}
    endpoint = read_endpoint(json.dumps({**endpoint_fields, "golden": body}))
    assert endpoint.golden == body
    assert read_endpoint(endpoint.to_json()) == endpoint


def test_what_a_tokenizer_lacks_may_be_left_out(endpoint_fields: dict[str, Any]) -> None:
    tokens = read_endpoint(json.dumps(endpoint_fields)).tokens
    assert (tokens.unk_id, tokens.cls_id, tokens.truncation_side) == (None, None, "right")
    endpoint_fields["tokens"].update(unk_id=1, cls_id=2, truncation_side="left")
    tokens = read_endpoint(json.dumps(endpoint_fields)).tokens
    assert (tokens.unk_id, tokens.cls_id, tokens.truncation_side) == (1, 2, "left")


@pytest.mark.parametrize(("side", "is_first"), [("right", True), ("left", False)])
def test_which_of_two_texts_is_first_follows_from_the_padding_where_it_is_not_said(
    endpoint_fields: dict[str, Any], side: str, is_first: bool
) -> None:
    endpoint_fields["tokens"]["padding_side"] = side
    tokens = read_endpoint(json.dumps(endpoint_fields)).tokens
    assert (tokens.question_first, tokens.split_special_tokens) == (is_first, False)
    endpoint_fields["tokens"].update(question_first=not is_first, split_special_tokens=True)
    tokens = read_endpoint(json.dumps(endpoint_fields)).tokens
    assert (tokens.question_first, tokens.split_special_tokens) == (not is_first, True)


def test_zero_shot_names_the_column_of_entailment(endpoint_fields: dict[str, Any]) -> None:
    endpoint_fields["task"] = "zero-shot-classification"
    endpoint_fields["classification"]["entailment"] = 1
    endpoint = read_endpoint(json.dumps(endpoint_fields))
    assert endpoint.classification is not None
    assert endpoint.classification.entailment == 1
    endpoint_fields["classification"]["entailment"] = 2
    with pytest.raises(ContractError, match="'entailment' must be from 0 to 1, got 2"):
        read_endpoint(json.dumps(endpoint_fields))


@pytest.mark.parametrize(("row", "kind"), [([], "a list"), ("a", "a string"), (None, "null")])
def test_a_row_that_is_no_object_is_named_by_its_place(row: object, kind: str) -> None:
    with pytest.raises(
        ContractError, match=rf"^it: field 'rows\[1\]' must be an object, got {kind}$"
    ):
        Fields("it", {"rows": [{}, row]}).rows("rows")


def test_a_number_beyond_a_float_is_refused() -> None:
    assert Fields("it", {"share": 2}).take("share", float) == 2.0
    with pytest.raises(ContractError, match="'share' must be float, got a number beyond it"):
        Fields("it", {"share": 10**400}).take("share", float)


EMBEDDING = {"normalize": True, "dimensions": 2, "similarity": "dot", "prompts": {"query": "Q: "}}


@pytest.mark.parametrize(
    ("task", "head", "dims", "pooling"),
    [
        ("sentence-embedding", "vector", [2], "engine"),
        ("sentence-embedding", "token_vectors", [-1, 2], "mean"),
        ("feature-extraction", "token_vectors", [-1, 2], "engine"),
    ],
)
def test_somebody_pools_exactly_once(
    endpoint_fields: dict[str, Any], task: str, head: str, dims: list[int], pooling: str
) -> None:
    endpoint_fields.update(task=task, head=head)
    endpoint_fields["outputs"][0]["dims"] = dims
    endpoint_fields["embedding"] = {**EMBEDDING, "pooling": pooling, "default_prompt": "query"}
    endpoint = read_endpoint(json.dumps(endpoint_fields))
    assert read_endpoint(endpoint.to_json()) == endpoint
    # What another head has is not read.
    assert (endpoint.classification, endpoint.masks, endpoint.generation) == (None, None, None)
    endpoint_fields["embedding"]["pooling"] = "cls" if pooling == "engine" else "engine"
    with pytest.raises(ContractError, match="field 'pooling' must be one of"):
        read_endpoint(json.dumps(endpoint_fields))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), 2, "field 'schema' must be from 1 to 1, got 2"),
        (("task",), "chat", "field 'task' must be one of text-classification"),
        (("bundle_version",), 0, "field 'bundle_version' must be from 1 to"),
        (("bundle_version",), True, "field 'bundle_version' must be int, got true or false"),
        (("tokens", "buckets"), [8, 8, 32], "must rise strictly and end with max_length 32"),
        (("tokens", "padding_side"), "up", "field 'padding_side' must be one of right, left"),
        (("tokens", "buckets"), [0, 32], "must rise strictly and end with max_length 32"),
        (("tokens", "buckets"), [True, 32], "must rise strictly and end with max_length 32"),
        (("tokens", "buckets"), [], "must rise strictly and end with max_length 32"),
        *(
            (("outputs", 0, "dims"), dims, "field 'dims' must be a list of sizes or -1")
            for dims in ([], [0], [-2], [True], [2.0])
        ),
        (("head",), "masks", "field 'head' must be one of sequence"),
        (("outputs", 0, "dims"), [-1, 2], "must have the axes [labels]"),
        (("inputs", 2, "role"), "candidates", "these roles beside the tokens': none"),
        (("classification", "labels"), ["A", "A"], "must be a list of different names"),
        (("classification", "labels"), ["A", 2], "field 'labels' must be a list of strings"),
        (("tokens", "unk_id"), -1, "field 'unk_id' must be from 0 to"),
        (("tokens", "cls_id"), "2", "field 'cls_id' must be int, got a string"),
        (("tokens", "truncation_side"), "up", "'truncation_side' must be one of right, left"),
        (("task",), "zero-shot-classification", "field 'entailment' is missing"),
        (("task",), "rerank", "field 'labels' must hold one name for task 'rerank', got 2"),
        (("inputs",), [], "must name input_ids, and no role twice"),
        (("recorded",), [], "field 'recorded' must be dict, got a list"),
        (("recorded",), {"answer": 1}, "field 'tolerance' is missing"),
        (("golden",), "ready", "field 'golden' must be dict, got a string"),
        (("limits", "max_texts"), "9", "field 'max_texts' must be int, got a string"),
    ],
)
def test_a_wrong_field_is_named(
    endpoint_fields: dict[str, Any], path: tuple[str | int, ...], value: Any, said: str
) -> None:
    place: Any = endpoint_fields
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(ContractError, match="endpoint.json") as caught:
        read_endpoint(json.dumps(endpoint_fields))
    assert said in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(JSON)
def test_no_document_raises_anything_but_a_contract_error(value: Any) -> None:
    with pytest.raises(ContractError):
        read_endpoint(json.dumps(value))


@given(st.binary())
def test_no_bytes_raise_anything_but_a_contract_error(raw: bytes) -> None:
    with pytest.raises(ContractError):
        read_endpoint(raw)
