from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from contract.endpoint import read_endpoint
from contract.errors import ContractError


def test_what_is_written_is_read_back(endpoint_json: str) -> None:
    endpoint = read_endpoint(endpoint_json)
    assert read_endpoint(endpoint.to_json()) == endpoint


def test_a_golden_body_is_kept_and_may_be_absent(endpoint_fields: dict[str, Any]) -> None:
    assert read_endpoint(json.dumps(endpoint_fields)).golden is None
    body = {"query": "tea", "texts": ["a kettle"]}
    endpoint = read_endpoint(json.dumps({**endpoint_fields, "golden": body}))
    assert endpoint.golden == body
    assert read_endpoint(endpoint.to_json()) == endpoint


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("schema",), 2, "field 'schema' must be from 1 to 1, got 2"),
        (("task",), "chat", "field 'task' must be one of text-classification"),
        (("bundle_version",), 0, "field 'bundle_version' must be from 1 to"),
        (("bundle_version",), True, "field 'bundle_version' must be int, got true or false"),
        (("tokens", "buckets"), [8, 8, 32], "must rise strictly and end with max_length 32"),
        (("tokens", "padding_side"), "up", "field 'padding_side' must be one of right, left"),
        (("outputs", 0, "dims"), [], "field 'dims' must be a list of sizes or -1"),
        (("head",), "masks", "field 'head' must be one of sequence"),
        (("outputs", 0, "dims"), [-1, 2], "must have the axes [labels]"),
        (("inputs", 2, "role"), "candidates", "these roles beside the tokens': none"),
        (("classification", "labels"), ["A", "A"], "must be a list of different names"),
        (("inputs",), [], "must name input_ids, and no role twice"),
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
