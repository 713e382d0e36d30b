from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from contract.endpoint import InputTensor, Tokens
from preprocess.rows import pad, plan_calls
from preprocess.tokens import Encoded

BUCKETS = (4, 8, 32)


@given(st.lists(st.integers(1, 32), min_size=1, max_size=200), st.integers(1, 64))
def test_every_text_is_in_one_call_that_fits_it(lengths: list[int], max_batch: int) -> None:
    calls = plan_calls(lengths, BUCKETS, max_batch)
    positions = [position for call in calls for position in call.positions]
    assert sorted(positions) == list(range(len(lengths)))
    for call in calls:
        assert call.length in BUCKETS
        assert 1 <= len(call.positions) <= max_batch
        assert max(lengths[position] for position in call.positions) <= call.length
        smaller = [size for size in BUCKETS if size < call.length]
        assert not smaller or all(lengths[at] > smaller[-1] for at in call.positions)


INPUTS = (
    InputTensor("ids", "input_ids", "INT64"),
    InputTensor("mask", "attention_mask", "INT32"),
    InputTensor("types", "token_type_ids", "INT32"),
)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_fills_the_other_side(side: str) -> None:
    tokens = Tokens(4, (4,), pad_id=9, pad_token="x", pad_type_id=3, padding_side=side,
                    truncate=True)  # fmt: skip
    ids, mask, types = pad([Encoded([5, 6], [0, 1])], 4, INPUTS, tokens)
    expected = {"right": ([5, 6, 9, 9], [1, 1, 0, 0], [0, 1, 3, 3]),
                "left": ([9, 9, 5, 6], [0, 0, 1, 1], [3, 3, 0, 1])}[side]  # fmt: skip
    assert ids.array.dtype == np.int64
    assert mask.array.dtype == np.int32
    assert [ids.array[0].tolist(), mask.array[0].tolist(), types.array[0].tolist()] == [*expected]
