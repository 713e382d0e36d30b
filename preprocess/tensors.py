"""Tensors as they cross to Triton and back: raw little-endian bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.errors import ServingError

Array = np.ndarray[Any, Any]


class Tensor(NamedTuple):
    """One input tensor; `dtype` is Triton's name and matches the array's: objects of bytes for
    BYTES."""

    name: str
    dtype: str
    array: Array

    def raw(self) -> bytes:
        if self.dtype == "BYTES":
            # Each behind its length.
            return b"".join(struct.pack("<I", len(one)) + one for one in self.array.flat)
        return np.ascontiguousarray(self.array).tobytes()


class RawOutput(NamedTuple):
    """An output as Triton sent it."""

    dtype: str
    shape: Sequence[int]
    raw: bytes | memoryview


_WIRE = {"FP16": "<f2", "FP32": "<f4", "INT32": "<i4", "INT64": "<i8"}


def read_outputs(found: Mapping[str, RawOutput], outputs: Sequence[OutputTensor]) -> list[Array]:
    """The arrays of `outputs` in order: integers as they are, every float as float32.

    Raises ServingError `engine_failed` for what is not as endpoint.json says.
    """
    return [_read(found.get(tensor.name), tensor) for tensor in outputs]


def _read(output: RawOutput | None, tensor: OutputTensor) -> Array:
    if output is None or output.dtype != tensor.dtype:
        raise _other_output(tensor)
    try:
        array = _to_array(output.raw, output.dtype).reshape(output.shape)
    except (ValueError, TypeError):
        raise _other_output(tensor) from None
    if not np.isfinite(array).all():
        raise ServingError("engine_failed", "the engine answered with a value that is no number")
    return array


def _other_output(tensor: OutputTensor) -> ServingError:
    return ServingError(
        "engine_failed",
        "an output of the engine is not as endpoint.json says; deploy the bundle again",
        field=tensor.name,
        limit=tensor.dtype,
    )


def _to_array(raw: bytes | memoryview, dtype: str) -> Array:
    if dtype == "BF16":
        # bfloat16 is the upper half of a float32.
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    array = np.frombuffer(raw, _WIRE[dtype])
    return array.astype(np.float32) if dtype == "FP16" else array
