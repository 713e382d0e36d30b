"""Encoded texts to padded tensors, and the engine's rows back to their own length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from preprocess.tensors import Array, Tensor
from preprocess.tokens import Encoded
from transformer_serving.contract.endpoint import Endpoint, InputTensor, Tokens
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import EXTRA_ROLES, HEADS, TOKENS

# One text's arrays, one for each output of the head.
Row = tuple[Array, ...]

# Whether padding adds to an output of the head.
_IS_PADDED = {
    name: any(axis in (TOKENS, *EXTRA_ROLES) for axes in head.outputs for axis in axes)
    for name, head in HEADS.items()
}
# Of so many rows, none longer, the numbers of all are filled in at once.
_MANY, _SHORT = 8, 64
_DTYPES: dict[str, type[np.generic]] = {"INT32": np.int32, "INT64": np.int64}


def pad(
    encoded: Sequence[Encoded], length: int, inputs: Sequence[InputTensor], tokens: Tokens
) -> list[Tensor]:
    """The input tensors of one call, each of shape [texts, length] or, for an extra role,
    [texts, n] with n the most that one of the texts has."""
    fill = {"input_ids": tokens.pad_id, "token_type_ids": tokens.pad_type_id, "attention_mask": 0}
    arrays = {
        tensor.role: np.empty((len(encoded), length), _DTYPES[tensor.dtype])
        for tensor in inputs
        if tensor.role not in EXTRA_ROLES
    }
    for role, array in arrays.items():
        array.fill(fill[role])
    fill_in = _all_rows if len(encoded) >= _MANY and length <= _SHORT else _row_by_row
    fill_in(arrays, encoded, length, tokens)
    for tensor in inputs:
        if tensor.role in EXTRA_ROLES:
            arrays[tensor.role] = _extra(encoded, length, tensor, tokens)
    return [Tensor(tensor.name, tensor.dtype, arrays[tensor.role]) for tensor in inputs]


def _row_by_row(
    arrays: Mapping[str, Array], encoded: Sequence[Encoded], length: int, tokens: Tokens
) -> None:
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


def _all_rows(
    arrays: Mapping[str, Array], encoded: Sequence[Encoded], length: int, tokens: Tokens
) -> None:
    """As _row_by_row, the places of all tokens at once: each row costs a microsecond there."""
    sizes, places = np.array([[len(text.ids)] for text in encoded]), np.arange(length)
    there = places < sizes if tokens.padding_side == "right" else places >= length - sizes
    for role, array in arrays.items():
        if role == "attention_mask":
            array[:] = there
            continue
        rows = [text.ids if role == "input_ids" else text.type_ids for text in encoded]
        array[there] = np.fromiter(chain.from_iterable(rows), array.dtype)


def _extra(encoded: Sequence[Encoded], length: int, tensor: InputTensor, tokens: Tokens) -> Array:
    """Zeros behind what a text has: a graph computes something there, and `unpad` cuts it off."""
    rows = [text.extras[tensor.role] for text in encoded]
    array = np.zeros((len(rows), max(map(len, rows))), _DTYPES[tensor.dtype])
    for row, values in enumerate(rows):
        array[row, : len(values)] = values
        if tensor.role == "mask_positions" and tokens.padding_side == "left":
            array[row, : len(values)] += length - len(encoded[row].ids)
    return array


def rows_of(outputs: Sequence[Array], encoded: Sequence[Encoded], endpoint: Endpoint) -> list[Row]:
    """Each text's own of one call's arrays. Raises ServingError where they are of other texts."""
    if any(array.shape[:1] != (len(encoded),) for array in outputs):
        raise ServingError("engine_failed", "the engine answered another number of texts")
    if not _IS_PADDED[endpoint.head]:
        return list(zip(*outputs, strict=True))
    return [unpad(arrays, text, endpoint) for text, *arrays in zip(encoded, *outputs, strict=True)]


def logits_of(rows: Sequence[Row]) -> Array:
    """The first output of all rows, [rows, ...] of float32, for reading."""
    if len(rows) == 1:
        # A view: to stack one costs three microseconds.
        return rows[0][0][np.newaxis].astype(np.float32, copy=False)
    return np.stack([row[0] for row in rows]).astype(np.float32, copy=False)


def unpad(outputs: Sequence[Array], text: Encoded, endpoint: Endpoint) -> Row:
    """One text's arrays, one an output, without what padding added to its axes."""
    axes = HEADS[endpoint.head].outputs
    return tuple(
        _cut(array, names, text, endpoint) for array, names in zip(outputs, axes, strict=True)
    )


def _cut(array: Array, axes: Sequence[str], text: Encoded, endpoint: Endpoint) -> Array:
    for axis, name in enumerate(axes):
        size = len(text.ids) if name == TOKENS else len(text.extras.get(name, ()))
        if name == TOKENS and endpoint.tokens.padding_side == "left":
            array = array[(slice(None),) * axis + (slice(array.shape[axis] - size, None),)]
        elif name == TOKENS or name in EXTRA_ROLES:
            array = array[(slice(None),) * axis + (slice(0, size),)]
    return array
