from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.engine.proof.sets import parity_set
from transformer_serving.contract.errors import ContractError
from transformer_serving.engine.proof.parity_set import ParitySet, read_parity_set
from transformer_serving.engine.proof.rows import KINDS


def raw_of(found: ParitySet) -> bytes:
    return found.to_json().encode()


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_as_it_was_written(kind: str) -> None:
    written = parity_set(kind)
    read = read_parity_set(raw_of(written))
    assert read.to_json() == written.to_json()
    assert (read.buckets, read.tolerance, read.inputs) == (
        written.buckets,
        written.tolerance,
        written.inputs,
    )
    for one, other in zip(read.rows, written.rows, strict=True):
        for name, array in other.inputs.items():
            assert one.inputs[name].dtype == array.dtype
            np.testing.assert_array_equal(one.inputs[name], array)
        for name, array in other.outputs.items():
            assert one.outputs[name].dtype == array.dtype
            np.testing.assert_array_equal(one.outputs[name], array)


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(values: Any) -> None:
        *parents, last = path
        for step in parents:
            values = values[step]
        values[last] = to

    return change


OUTPUT = ("rows", 0, "outputs", "output")
IDS = ("rows", 0, "inputs", "ids")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("schema", to=2), "'schema' must be from 1 to 1"),
        (_set("kind", to="other"), "'kind' must be one of"),
        (_set("tolerance", "difference", to=float("nan")), "'difference' must be above 0"),
        (_set("tolerance", "cosine", to=10**400), "'cosine' must be above 0"),
        (_set("buckets", to=[4, 4]), "'buckets' must rise"),
        (_set("buckets", to=[4, 8, 16, 32]), "must hold one of 17 to 32 tokens"),
        (_set("max_batch_size", to=10**9), "'max_batch_size' must be from 1 to 65536"),
        (_set("inputs", 1, "role", to="input_ids"), "no role or name twice"),
        (_set("inputs", to=[]), "must name input_ids"),
        (_set("outputs", to=["a", "b"]), "'outputs' must be 1 names"),
        (_set("rows", to=[]), "'rows' must be 1 to"),
        (_set("rows", 0, "tokens", to=17), "'tokens' must be from 1 to 16"),
        (_set("rows", 0, "outputs", to={}), "must hold 1 tensors, got 0"),
        (_set(*OUTPUT, "shape", to=[2**40]), "'shape' must be 1 to 3 sizes"),
        (_set(*OUTPUT, "shape", to=[2**26, 2**26, 2**26]), "must be of at most 67108864 bytes"),
        (_set(*OUTPUT, "shape", to=[1, 5]), "must have 1 axes, got shape [1, 5]"),
        (_set(*OUTPUT, "shape", to=[6]), "'base64' must have 32 characters"),
        (_set(*OUTPUT, "base64", to="!" * 28), "is not base64"),
        (_set(*OUTPUT, "base64", to="//////////////////////////8="), "is no number"),
        (_set(*OUTPUT, "dtype", to="float64"), "'dtype' must be one of"),
        (_set(*IDS, "dtype", to="float32"), "'base64' must have 8 characters"),
        (_set(*IDS, to={"dtype": "int32", "shape": [1], "base64": "/////w=="}), "be negative"),
        (_set(*IDS, "shape", to=[0]), "'base64' must have 0 characters"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[Any], None], message: str) -> None:
    values = json.loads(parity_set().to_json())
    change(values)
    with pytest.raises(ContractError) as caught:
        read_parity_set(json.dumps(values).encode())
    assert message in str(caught.value)


def test_a_mask_outside_of_its_row_is_refused() -> None:
    values = json.loads(parity_set("masks").to_json())
    values["rows"][0]["inputs"]["at"] = {"dtype": "uint8", "shape": [1], "base64": "CQ=="}
    with pytest.raises(ContractError, match="outside of the row"):
        read_parity_set(json.dumps(values).encode())


PLAIN = parity_set("masks", buckets=(4,)).to_json()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(place for key, inner in items for place in _places(inner, (*path, key)))]


PLACES = _places(json.loads(PLAIN))[1:]


@settings(max_examples=400)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_other_value_anywhere_is_read_or_refused(place: tuple[Any, ...], value: Any) -> None:
    values = json.loads(PLAIN)
    _set(*place, to=value)(values)
    try:
        found = read_parity_set(json.dumps(values).encode())
    except ContractError:
        return
    assert read_parity_set(raw_of(found)).to_json() == found.to_json()


@settings(max_examples=300)
@given(st.binary(max_size=64), st.integers(0, len(PLAIN)), st.integers(0, 40))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int, dropped: int) -> None:
    raw = PLAIN.encode()
    with suppress(ContractError):
        read_parity_set(raw[:at] + noise + raw[at + dropped :])
