from __future__ import annotations

import numpy as np
import pytest

from contract.endpoint import InputTensor, Tokens
from preprocess.rows import pad
from preprocess.tokens import Encoded

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
