"""The texts of several calls one behind the other, in rows of few sizes, and back again.

Tested by tests/engine/test_packed_texts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from transformer_serving.engine.backends.exported_program import Call
from transformer_serving.engine.backends.packed.graph import Index

Numbers = NDArray[np.int32]

# Tokens of a row: each size is recorded as a graph of its own.
SIZES = tuple(
    sorted({16 << half for half in range(11)} | {48 << half for half in range(1, 9)})
)  # 16, 32, 64, 96, 128, 192, ... 12288, 16384
# Texts of a row; a row with fewer has empty ones at its end.
TEXTS = 64
# Attention goes over a text by blocks of this many tokens.
BLOCK = 128


@dataclass(frozen=True)
class Row:
    """One run of the packed graph: `tokens` of `texts` in `size` places, by `width` arrays of
    `size` and the cumulative lengths, all in `numbers`."""

    numbers: Numbers
    size: int
    width: int
    texts: int
    tokens: int
    longest: int

    def split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """`numbers` in any memory, as the arrays of the graph."""
        tokens = flat[: self.width * self.size].view(self.width, 1, self.size)
        *arrays, owners = tokens.unbind(0)
        return [*arrays, owners[0], flat[self.width * self.size :]]


@dataclass(frozen=True)
class CallTexts:
    """A call's texts: where its tokens [texts, tokens] are no padding, and what there is of these,
    in order: the call's arrays, and their rows in tables."""

    kept: NDArray[np.bool_]
    lengths: NDArray[np.int64]
    arrays: tuple[NDArray[Any], ...]


@dataclass(frozen=True)
class Texts:
    """The texts of several calls, one behind the other."""

    kept: tuple[NDArray[np.bool_], ...]
    lengths: NDArray[np.int64]
    arrays: tuple[NDArray[Any], ...]

    def rows(self) -> Iterator[Row]:
        """Each of at most TEXTS texts and, but for a single longer one, SIZES[-1] tokens."""
        ends = np.cumsum(self.lengths)
        first = done = 0
        while first < len(ends):
            last = min(first + TEXTS, int(np.searchsorted(ends, done + SIZES[-1], side="right")))
            last = max(last, first + 1)
            yield self._row(first, last, done)
            first, done = last, int(ends[last - 1])

    def _row(self, first: int, last: int, start: int) -> Row:
        lengths = self.lengths[first:last]
        tokens, longest = int(lengths.sum()), int(lengths.max())
        size = size_of(tokens)
        width = len(self.arrays) + 1
        numbers = np.zeros(width * size + TEXTS + 1, np.int32)
        for place, array in enumerate(self.arrays):
            numbers[place * size : place * size + tokens] = array[start : start + tokens]
        owners = numbers[(width - 1) * size : width * size]
        owners[:] = TEXTS
        owners[:tokens] = np.repeat(np.arange(last - first, dtype=np.int32), lengths)
        cumulative = numbers[width * size :]
        cumulative[:] = tokens
        cumulative[0] = 0
        cumulative[1 : last - first + 1] = np.cumsum(lengths)
        return Row(numbers, size, width, last - first, tokens, blocks_of(longest))

    def answers(self, outputs: Sequence[NDArray[Any]], per_text: Sequence[bool]) -> list[Any]:
        """For each call its outputs, given those of all texts, or of all tokens, in order."""
        found: list[list[NDArray[Any]]] = []
        texts = tokens = 0
        for kept in self.kept:
            count = int(kept.sum())
            found.append(
                [
                    output[texts : texts + len(kept)]
                    if whole
                    else _padded(output[tokens : tokens + count], kept)
                    for output, whole in zip(outputs, per_text, strict=True)
                ]
            )
            texts += len(kept)
            tokens += count
        return found


def _padded(tokens: NDArray[Any], kept: NDArray[np.bool_]) -> NDArray[Any]:
    if len(tokens) == kept.size:
        return tokens.reshape(*kept.shape, *tokens.shape[1:])
    array = np.zeros((*kept.shape, *tokens.shape[1:]), tokens.dtype)
    array[kept] = tokens
    return array


def size_of(tokens: int) -> int:
    """The places of a row with so many tokens."""
    return next((size for size in SIZES if size >= tokens), -(-tokens // SIZES[-1]) * SIZES[-1])


def blocks_of(longest: int) -> int:
    """The longest text as attention counts it, in doublings."""
    return max(BLOCK, 1 << (longest - 1).bit_length())


def filling(size: int, longest: int) -> list[int]:
    """Lengths of texts that fill a row of `size`, the first of which is of `longest`."""
    first = min(size, longest)
    others = -(-(size - first) // (TEXTS - 1))
    lengths = [first]
    while (left := size - sum(lengths)) > 0:
        lengths.append(min(left, max(others, SIZES[0])))
    return lengths


def row_of(lengths: Sequence[int], width: int) -> Row:
    """A row of texts of these lengths, with zeros for tokens, by `width` arrays."""
    zeros = np.zeros(sum(lengths), np.int32)
    [row] = Texts((), np.array(lengths), (zeros,) * width).rows()
    return row


def joined(calls: Sequence[CallTexts]) -> Texts:
    return Texts(
        tuple(call.kept for call in calls),
        np.concatenate([call.lengths for call in calls]),
        tuple(
            np.concatenate(parts) for parts in zip(*(call.arrays for call in calls), strict=True)
        ),
    )


def texts_of(call: Call, mask: int, indices: Sequence[Index]) -> CallTexts | None:
    """The texts of a call, whose attention mask is the array at `mask`.

    None where they are not to be packed: with padding in front of a text or within it, with other
    values in the mask than 0 and 1, with a text without a token. Raises IndexError for a text that
    is longer than the model has places.
    """
    there = call[mask] != 0
    lengths = there.sum(axis=1)
    if not lengths.all() or not np.array_equal(
        np.arange(there.shape[1]) < lengths[:, None], call[mask]
    ):
        return None
    given = [array[there] for array in call]
    given += [_looked_up(index, call, there, lengths) for index in indices]
    return CallTexts(there, lengths, tuple(given))


def _looked_up(
    index: Index, call: Call, kept: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> NDArray[Any]:
    rows: NDArray[Any]
    if index.of_place is None:
        with torch.inference_mode():
            [found] = index.module(*[torch.tensor(array) for array in call])
        rows = found.expand(kept.shape).numpy()[kept]
        if rows.min() < 0 or rows.max() >= index.rows:
            raise IndexError(f"a text has a position above {index.rows - 1}, the model's last")
        return rows
    if (longest := int(lengths.max())) > len(index.of_place):
        raise IndexError(f"a text has {longest} tokens, and the model {len(index.of_place)} places")
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows = index.of_place[np.arange(len(starts)) - starts]
    return rows
