"""Encoded texts to engine calls and back: bucket, pad, call, and every row to its own text."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.endpoint import Endpoint, InputTensor, Tokens
from preprocess.tokens import Encoded
from preprocess.triton_client import Tensor, TritonClient

Array = np.ndarray[Any, Any]

_DTYPES: dict[str, type[np.generic]] = {"INT32": np.int32, "INT64": np.int64}


@dataclass(frozen=True)
class Call:
    """One engine call: which texts (positions in the request) padded to which length in tokens."""

    positions: tuple[int, ...]
    length: int


def plan_calls(lengths: Sequence[int], buckets: Sequence[int], max_batch_size: int) -> list[Call]:
    """Split texts into calls of one bucket each, at most `max_batch_size` texts a call.

    Every position is in exactly one call, and no text is longer than its call's length.
    """
    by_bucket: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        by_bucket.setdefault(buckets[bisect_left(buckets, length)], []).append(position)
    return [
        Call(tuple(positions[start : start + max_batch_size]), bucket)
        for bucket, positions in sorted(by_bucket.items())
        for start in range(0, len(positions), max_batch_size)
    ]


def pad(
    encoded: Sequence[Encoded], length: int, inputs: Sequence[InputTensor], tokens: Tokens
) -> list[Tensor]:
    """The input tensors of one call, each of shape [texts, length]."""
    fill = {
        "input_ids": tokens.pad_id,
        "token_type_ids": tokens.pad_type_id,
        "attention_mask": 0,
    }
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


async def infer(
    client: TritonClient,
    model: str,
    endpoint: Endpoint,
    encoded: Sequence[Encoded],
    deadline: float,
) -> list[Array]:
    """One float32 array for each text, in order: the engine's row, its token axis unpadded.

    `deadline` is on the clock of time.monotonic. Raises ServingError as `TritonClient.infer` does;
    when one call fails the others are abandoned.
    """
    calls = plan_calls(
        [len(text.ids) for text in encoded],
        endpoint.tokens.buckets,
        endpoint.limits.max_batch_size,
    )

    async def run(call: Call) -> Array:
        texts = [encoded[position] for position in call.positions]
        tensors = pad(texts, call.length, endpoint.inputs, endpoint.tokens)
        return await client.infer(
            model, endpoint.bundle_version, tensors, endpoint.output, deadline
        )

    outputs = [await run(calls[0])] if len(calls) == 1 else await asyncio.gather(*map(run, calls))
    rows: list[Array] = [np.empty(0, np.float32)] * len(encoded)
    for call, output in zip(calls, outputs, strict=True):
        for row, position in enumerate(call.positions):
            rows[position] = _unpad(output[row], len(encoded[position].ids), endpoint)
    return rows


def _unpad(row: Array, size: int, endpoint: Endpoint) -> Array:
    if endpoint.output.dims[0] != -1:
        return row
    return row[:size] if endpoint.tokens.padding_side == "right" else row[-size:]
