from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from preprocess.rows import pad, rows_of, unpad
from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import InputTensor, OutputTensor, Tokens, read_endpoint

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


@given(st.sampled_from(["right", "left"]), st.lists(st.integers(1, 64), min_size=1, max_size=20))
def test_many_rows_at_once_are_filled_as_each_alone(side: str, sizes: list[int]) -> None:
    tokens = Tokens(70, (70,), pad_id=9, pad_token="x", pad_type_id=3, padding_side=side,
                    truncate=True)  # fmt: skip
    texts = [Encoded([*range(10, 10 + size)], [size % 2] * size) for size in sizes]
    for length in {max(sizes), 64, 65}:
        alone = [pad([text], length, INPUTS, tokens) for text in texts]
        for together, *single in zip(pad(texts, length, INPUTS, tokens), *alone, strict=True):
            wanted = np.concatenate([one.array for one in single])
            assert together.array.dtype == wanted.dtype
            assert together.array.tolist() == wanted.tolist()


EXTRAS = (
    InputTensor("ids", "input_ids", "INT32"),
    InputTensor("masks", "mask_positions", "INT32"),
    InputTensor("wanted", "candidates", "INT64"),
)


@pytest.mark.parametrize(
    ("side", "first", "second"), [("right", [1], [0, 2]), ("left", [3], [1, 3])]
)
def test_extra_inputs_have_a_width_of_their_own(
    side: str, first: list[int], second: list[int], endpoint_json: str
) -> None:
    tokens = replace(read_endpoint(endpoint_json).tokens, padding_side=side)
    texts = [
        Encoded([7, 9], [0, 0], {"mask_positions": [1], "candidates": [40, 41, 42]}),
        Encoded([9, 7, 9], [0] * 3, {"mask_positions": [0, 2], "candidates": [43]}),
    ]
    _, positions, candidates = pad(texts, 4, EXTRAS, tokens)
    assert positions.array[0, :1].tolist() == first
    assert positions.array[1].tolist() == second
    assert candidates.array.tolist() == [[40, 41, 42], [43, 0, 0]]
    assert candidates.array.dtype == np.int64


@pytest.mark.parametrize("side", ["right", "left"])
def test_every_axis_is_cut_to_the_texts_own_size(side: str, endpoint_json: str) -> None:
    endpoint = read_endpoint(endpoint_json)
    endpoint = replace(endpoint, tokens=replace(endpoint.tokens, padding_side=side))
    text = Encoded([5, 6], [0, 0], {"mask_positions": [0], "candidates": [8, 9]})
    table = np.arange(8.0).reshape(4, 2)
    (cut,) = unpad([table], text, replace(endpoint, head="tokens"))
    assert cut.tolist() == (table[:2] if side == "right" else table[2:]).tolist()
    output = OutputTensor("x", "FP32", (-1, -1))
    masks = replace(endpoint, head="masks", outputs=(output, output, output))
    best, ids, scores = unpad([np.ones((3, 5)), np.ones((3, 5)), np.ones((3, 4))], text, masks)
    assert (best.shape, ids.shape, scores.shape) == ((1, 5), (1, 5), (1, 2))


def test_a_row_is_its_texts_own_of_every_output(endpoint_json: str) -> None:
    endpoint = read_endpoint(endpoint_json)
    texts = [Encoded([5, 6], [0, 0]), Encoded([7], [0])]
    scores = np.arange(4, dtype=np.float32).reshape(2, 2)
    for head, output in (("vector", scores), ("token_vectors", scores[:, :, None])):
        rows = rows_of([output], texts, replace(endpoint, head=head))
        alone = [
            unpad([output[at]], one, replace(endpoint, head=head)) for at, one in enumerate(texts)
        ]
        assert [[array.tolist() for array in row] for row in rows] == [
            [array.tolist() for array in row] for row in alone
        ]
