"""Calls without padding: all their texts one behind the other, in rows of few sizes.

A row's size alone decides what is computed, so that a call is the replay of one of a few graphs.

Tested by tests/engine/test_packed_texts.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_serving.contract.error_line import named_line
from transformer_serving.engine.backends import usual_shapes
from transformer_serving.engine.backends.exported_program import (
    Call,
    Calls,
    LoadedProgram,
    Outputs,
    load_program,
)
from transformer_serving.engine.backends.grouping import MASK
from transformer_serving.engine.backends.model_settings import DeviceFailed
from transformer_serving.engine.backends.packed.graph import (
    Index,
    PackedGraph,
    pack,
)
from transformer_serving.engine.backends.packed.operators import text_by_text, varlen
from transformer_serving.engine.backends.packed.texts import (
    BLOCK,
    SIZES,
    CallTexts,
    Row,
    blocks_of,
    filling,
    joined,
    row_of,
    texts_of,
)
from transformer_serving.engine.backends.torch_cuda import Gpu, fetched, pinned

# By rows, each row's outputs: of its texts, or of its tokens.
RunRows = Callable[[Sequence[Row]], list[Outputs]]
# How far a packed answer may be from a padded one, of the padded one's length: they add up in
# another order.
FAR = {"bf16": 0.1, "fp16": 0.03}
# Lengths of texts that are asked for it, in a row of its own size and in one that was recorded.
TRIED, TRIED_RECORDED = (1, 2, 7, 16, 33, 100, 300), (3, 1, 20, 60)
# Rows up to here are recorded before the first call: beyond, few calls are of one size.
_RECORDED_FIRST = 2048
_RECORDED_LONGEST = (BLOCK, 2 * BLOCK)


class PackedCalls:
    """`padded` takes the calls that cannot be packed."""

    def __init__(
        self, mask: int, indices: Sequence[Index], per_text: Sequence[bool], run_rows: RunRows,
        padded: Calls,
    ) -> None:  # fmt: skip
        self._mask, self._indices, self._per_text = mask, indices, per_text
        self._run_rows, self._padded = run_rows, padded

    def run(self, calls: Sequence[Call]) -> list[Outputs | Exception]:
        answers: dict[int, Outputs | Exception] = {}
        packed: dict[int, CallTexts] = {}
        for at, call in enumerate(calls):
            try:
                texts = texts_of(call, self._mask, self._indices)
            except (RuntimeError, IndexError) as error:
                answers[at] = error
                continue
            if texts is not None:
                packed[at] = texts
        answers |= zip(packed, self._answers(list(packed.values())), strict=True)
        others = [at for at in range(len(calls)) if at not in answers]
        if others:
            answers |= zip(others, self._padded.run([calls[at] for at in others]), strict=True)
        return [answers[at] for at in range(len(calls))]

    def _answers(self, calls: Sequence[CallTexts]) -> list[Outputs | Exception]:
        if not calls:
            return []
        texts = joined(calls)
        try:
            rows = self._run_rows(list(texts.rows()))
        except RuntimeError as error:
            # Without its frames, which hold what the failed rows took on the device.
            fault = error.with_traceback(None)
        else:
            # Of one row, as most calls are, they are what it gave.
            outputs = rows[0] if len(rows) == 1 else map(np.concatenate, zip(*rows, strict=True))
            return texts.answers(list(outputs), self._per_text)
        if len(calls) == 1:
            return [fault]
        # One of them may be at fault: each on its own, so that only that one fails.
        return [self._answers([one])[0] for one in calls]


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


class _Never:
    """For calls that must be packed."""

    def run(self, calls: Sequence[Call]) -> list[Outputs | Exception]:
        raise RuntimeError("texts without padding between them were not packed")


def open_packed(
    path: Path, loaded: LoadedProgram, gpu: Gpu, padded: Calls
) -> tuple[PackedCalls | None, str]:
    """The program `loaded` from `path` without padding; None and why where that is not to be.

    Raises DeviceFailed.
    """
    if loaded.program.precision == "fp32":
        return None, "torch's attention without padding takes bf16 and fp16 alone"
    try:
        return _opened(path, loaded, gpu, padded)
    except DeviceFailed:
        raise
    # Whatever else it is, the program serves without this.
    except Exception as error:
        return None, named_line(error)


def _opened(
    path: Path, loaded: LoadedProgram, gpu: Gpu, padded: Calls
) -> tuple[PackedCalls | None, str]:
    packed = pack(loaded, varlen)
    indices = packed.indices
    if any(index.of_place is None for index in indices):
        # Of each call, and so on the processor that has its arrays.
        indices = pack(load_program(path), text_by_text).indices
    names = [tensor.name for tensor in loaded.program.inputs]
    rows = GpuRows(packed, gpu)
    given = names.index(MASK), indices, packed.per_text, rows
    places = packed.places or max(TRIED)
    record(rows, len(names) + len(indices), places)
    for lengths in (TRIED, TRIED_RECORDED):
        far = distance(PackedCalls(*given, _Never()), padded, loaded, np.minimum(lengths, places))
        if not far <= FAR[loaded.program.precision]:
            return None, f"answers without padding are {far:.2g} from those with it"
    return PackedCalls(*given, padded), ""


def distance(one: Calls, other: Calls, loaded: LoadedProgram, lengths: NDArray[np.int64]) -> float:
    """Between the answers to texts of these lengths, in lengths of the other's: of the text for
    which it is most, and not a number where one of them is none."""
    names = [tensor.name for tensor in loaded.program.inputs]
    limits, source = loaded.id_limits, np.random.default_rng(1)
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
            raise answer
    assert isinstance(found, list)
    assert isinstance(wanted, list)
    far = [
        np.linalg.norm(_of_text(mine - theirs, kept)) / np.linalg.norm(_of_text(theirs, kept))
        for all_mine, all_theirs in zip(found, wanted, strict=True)
        for mine, theirs, kept in zip(all_mine, all_theirs, there, strict=True)
    ]
    return float(np.max(far))


def _of_text(values: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[Any]:
    """Of a text's values, or those of its tokens, what no padding has."""
    return values[kept] if values.shape[:1] == kept.shape else values


def record(run_rows: RunRows, width: int, places: int) -> None:
    """The rows of most calls, so that no caller waits for it."""
    for longest in _RECORDED_LONGEST:
        for size in SIZES:
            fits = blocks_of(min(size, longest)) == longest and longest <= blocks_of(places)
            if fits and size <= _RECORDED_FIRST:
                row = row_of(filling(size, longest), width)
                for _ in range(usual_shapes.TIMES):
                    run_rows([row])
