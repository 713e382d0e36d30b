from __future__ import annotations

import numpy as np
import pytest

from preprocess.rows import pad
from preprocess.tokens import Encoded
from tests.engine.proof.sets import parity_set
from transformer_serving.contract.endpoint import InputTensor, Tokens
from transformer_serving.engine.proof.calls import calls


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "kind", ["softmax", "token_softmax", "spans", "vector", "token_vectors", "masks"]
)
def test_calls_are_padded_as_an_endpoints_are(kind: str, side: str) -> None:
    found = parity_set(kind, side)
    tokens = Tokens(16, found.buckets, pad_id=7, pad_token="x", pad_type_id=1, padding_side=side,
                    truncate=True)  # fmt: skip
    inputs = [InputTensor(one.name, one.role, one.dtype) for one in found.inputs]
    names = {one.role: one.name for one in found.inputs}
    asked = 0
    for call in calls(found):
        encoded = []
        for at in call.rows:
            row = {role: found.rows[at].inputs[name].tolist() for role, name in names.items()}
            ids, types = row.pop("input_ids"), row.pop("token_type_ids")
            encoded.append(Encoded(ids, types, row))
        for tensor in pad(encoded, call.length, inputs, tokens):
            ours = call.tensors[tensor.name]
            assert ours.dtype == tensor.array.dtype
            np.testing.assert_array_equal(ours, tensor.array)
        asked += 1
    assert asked > len(found.buckets)


def test_every_bucket_is_asked_alone_by_two_and_in_the_largest_batch() -> None:
    found = parity_set(max_batch_size=6, max_call_tokens=64)
    shapes = {(call.length, call.batch) for call in calls(found)}
    assert shapes == {(4, 1), (4, 2), (4, 6), (8, 1), (8, 2), (8, 6), (16, 1), (16, 2), (16, 4)}
    for call in calls(found):
        lengths = [found.rows[at].tokens for at in call.rows]
        below = max((size for size in found.buckets if size < call.length), default=0)
        assert all(below < size <= call.length for size in lengths)
        if call.batch > 1:
            assert (max(lengths), min(lengths)) == (call.length, below + 1)


@pytest.mark.parametrize(("most", "alone"), [(64, 1), (48, 1), (32, 2), (16, 3)])
def test_a_row_is_asked_alone_where_no_batch_has_room_for_it(most: int, alone: int) -> None:
    """Every row near a bucket's edge is compared there, the longest alone too."""
    found = parity_set(max_call_tokens=most)
    own = [call for call in calls(found) if call.length == 16]
    single = [found.rows[call.rows[0]].tokens for call in own if call.batch == 1]
    assert (len(single), max(single)) == (alone, 16)
    assert {found.rows[at].tokens for call in own for at in call.rows} == {9, 15, 16}


def test_a_bucket_with_room_for_one_text_is_asked_alone_only() -> None:
    found = parity_set(max_call_tokens=16)
    assert {call.batch for call in calls(found) if call.length == 16} == {1}


def test_any_length_can_be_asked_and_only_those_that_serve_in_the_largest_batch() -> None:
    found = parity_set()
    own = list(calls(found, (7, 8, 9)))
    assert {(call.length, call.batch) for call in own} == {(7, 1), (7, 2), (8, 1), (8, 2), (8, 6),
                                                           (9, 1), (9, 2)}  # fmt: skip
    assert {found.rows[call.rows[0]].tokens for call in own if call.batch == 2} == {7, 8, 9}
