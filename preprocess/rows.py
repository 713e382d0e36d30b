"""Encoded texts to padded tensors, and the engine's rows back to their own length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from contract.endpoint import Endpoint, InputTensor, Tokens
from preprocess.tokens import Encoded
from preprocess.triton_client import Tensor

Array = np.ndarray[Any, Any]

_DTYPES: dict[str, type[np.generic]] = {"INT32": np.int32, "INT64": np.int64}


def pad(
    encoded: Sequence[Encoded], length: int, inputs: Sequence[InputTensor], tokens: Tokens
) -> list[Tensor]:
    """The input tensors of one call, each of shape [texts, length]."""
    fill = {"input_ids": tokens.pad_id, "token_type_ids": tokens.pad_type_id, "attention_mask": 0}
    arrays = {
        tensor.role: np.full((len(encoded), length), fill[tensor.role], _DTYPES[tensor.dtype])
        for tensor in inputs
    }
    for row, text in enumerate(encoded):
        size = len(text.ids)
        span = slice(0, size) if tokens.padding_side == "right" else slice(length - size, length)
        for role, array in arrays.items():
            if role == "input_ids":
                array[row, span] = text.ids
            elif role == "token_type_ids":
                array[row, span] = text.type_ids
            else:
                array[row, span] = 1
    return [Tensor(tensor.name, tensor.dtype, arrays[tensor.role]) for tensor in inputs]


def unpad(row: Array, size: int, endpoint: Endpoint) -> Array:
    """One text's row; where its first axis is tokens, without the padding."""
    if endpoint.output.dims[0] != -1:
        return row
    return row[:size] if endpoint.tokens.padding_side == "right" else row[-size:]
