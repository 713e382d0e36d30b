"""Calls without padding: all their texts one behind the other, in rows of few sizes.

A row's size alone decides what is computed, so that a call is the replay of one of a few graphs.

Tested by tests/engine/test_packed_texts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_serving.engine.backends import usual_shapes
from transformer_serving.engine.backends.exported_program import LoadedProgram, load_program
from transformer_serving.engine.backends.graph_parts import MASK
from transformer_serving.engine.backends.packed_graph import (
    Index,
    PackedGraph,
    Unpackable,
    pack,
)
from transformer_serving.engine.backends.packed_operators import text_by_text, varlen
from transformer_serving.engine.backends.packed_texts import (
    BLOCK,
    SIZES,
    Row,
    filling,
    row_of,
    texts_of,
)
from transformer_serving.engine.backends.torch_cuda import Gpu, fetched, pinned

Outputs = list[NDArray[Any]]
# By rows, each row's outputs: of its texts, or of its tokens.
RunRows = Callable[[Sequence[Row]], list[Outputs]]
# How far a packed answer may be from a padded one, of the padded one's length: they add up in
# another order. One that is wrong is another answer altogether.
_FAR = {"bf16": 0.1, "fp16": 0.03, "fp32": 1e-3}
_TRIED = (1, 2, 7, 16, 33, 100, 300)
# Rows up to here are recorded before the first call: beyond, few calls are of one size.
_RECORDED_FIRST = 2048
_RECORDED_LONGEST = (BLOCK, 2 * BLOCK)


class Calls(Protocol):
    def run(self, calls: Sequence[Sequence[NDArray[Any]]]) -> list[Outputs | Exception]: ...


class PackedCalls:
    """`padded` takes the calls that cannot be packed."""

    def __init__(
        self, mask: int, indices: Sequence[Index], per_text: Sequence[bool], run_rows: RunRows,
        padded: Calls,
    ) -> None:  # fmt: skip
        self._mask, self._indices, self._per_text = mask, indices, per_text
        self._run_rows, self._padded = run_rows, padded

    def run(self, calls: Sequence[Sequence[NDArray[Any]]]) -> list[Outputs | Exception]:
        texts = texts_of(calls, self._mask, self._indices) if calls else None
        if texts is None:
            return self._padded.run(calls)
        try:
            rows = self._run_rows(list(texts.rows()))
        except RuntimeError as error:
            return [error for _ in calls]
        joined = [np.concatenate(parts) for parts in zip(*rows, strict=True)]
        return texts.answers(joined, self._per_text)


class GpuRows:
    """The packed graph on a GPU."""

    def __init__(self, packed: PackedGraph, gpu: Gpu) -> None:
        self._packed, self._gpu = packed, gpu

    def __call__(self, rows: Sequence[Row]) -> list[Outputs]:
        with self._gpu.work():
            begun = [self._begin(row) for row in rows]
        return [[tensor.numpy() for tensor in one] for one in begun]

    def _begin(self, row: Row) -> list[torch.Tensor]:
        def forward(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
            return computed(self._packed, row, inputs[0])

        shape = ((1, row.size), (row.longest,))
        found = self._gpu.outputs(shape, forward, [pinned(row.numbers)])
        return [fetched(output) for output in of_row(self._packed, row, found)]


def computed(packed: PackedGraph, row: Row, numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found: tuple[torch.Tensor, ...] = packed.module.forward(*row.split(numbers), row.longest)
    return found


def of_row(
    packed: PackedGraph, row: Row, outputs: Sequence[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Without what stands for no text or token."""
    for output, per_text in zip(outputs, packed.per_text, strict=True):
        yield output[: row.texts] if per_text else output[0, : row.tokens]


def open_packed(
    path: Path, loaded: LoadedProgram, gpu: Gpu, padded: Calls
) -> tuple[PackedCalls | None, str]:
    """The program `loaded` from `path` without padding; None and why where that is not to be."""
    precision = loaded.program.precision
    if precision == "fp32":
        return None, "torch's attention without padding takes bf16 and fp16 alone"
    try:
        packed = pack(loaded, varlen)
        indices = packed.indices
        if any(index.of_place is None for index in indices):
            # Of each call, and so on the processor that has its arrays.
            indices = pack(load_program(path), text_by_text).indices
        names = [tensor.name for tensor in loaded.program.inputs]
        rows = GpuRows(packed, gpu)
        calls = PackedCalls(names.index(MASK), indices, packed.per_text, rows, padded)
        far = distance(calls, padded, loaded, packed.places or max(_TRIED))
        if far > _FAR[precision]:
            return None, f"its answers without padding are {far:.2g} from those with it"
        _record(rows, len(names) + len(indices), packed.places or max(_RECORDED_LONGEST))
    except (Unpackable, ImportError, RuntimeError) as error:
        return None, str(error).splitlines()[0]
    return calls, ""


def distance(one: Calls, other: Calls, loaded: LoadedProgram, places: int) -> float:
    """Between the answers to texts of various lengths, of the length of the other's."""
    names = [tensor.name for tensor in loaded.program.inputs]
    limits, source = loaded.id_limits, np.random.default_rng(1)
    # Of some tables the first rows are for padding.
    lengths = np.minimum(_TRIED, places - places // 16)
    there = np.arange(max(lengths)) < lengths[:, None]
    call = [
        (
            there * (1 if name == MASK else source.integers(0, limits.get(name, 1), there.shape))
        ).astype(np.int32)
        for name in names
    ]
    [found], [wanted] = one.run([call]), other.run([call])
    for answer in (found, wanted):
        if isinstance(answer, Exception):
            raise RuntimeError(str(answer)) from answer
    pairs = [
        (mine, theirs if mine.shape[:2] != there.shape else theirs * _over(there, theirs))
        for mine, theirs in zip(found, wanted, strict=True)  # type: ignore[arg-type]
    ]
    return max(float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in pairs)


def _over(there: NDArray[np.bool_], array: NDArray[Any]) -> NDArray[np.bool_]:
    return there.reshape(*there.shape, *[1] * (array.ndim - there.ndim))


def _record(run_rows: RunRows, width: int, places: int) -> None:
    """So that no caller waits for it."""
    for longest in _RECORDED_LONGEST:
        for size in SIZES:
            if longest <= places and longest // 2 < size <= _RECORDED_FIRST:
                row = row_of(filling(size, longest), width)
                for _ in range(usual_shapes.TIMES):
                    run_rows([row])
