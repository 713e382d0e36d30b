"""Which requests of one execute() run together, and how their results come apart again.

Triton hands over different lengths at once only where every input says `allow_ragged_batch`, as one
of an endpoint that was added by hand may (docs/decisions/engine.md). Tested by
tests/engine/test_grouping.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

# Joining two lengths costs padding; a run of its own costs about as much as this many tokens
# (a few tenths of a millisecond), whatever the share of padding.
FREE_TOKENS = 32
# Beyond that, at most this share of a joined run may be padding.
WASTE = 0.125

TOKENS = "tokens"
MASK = "attention_mask"
# Inputs whose second axis is their own (contract.heads); that of all others is the tokens'.
EXTRA_INPUTS = ("mask_positions", "candidates")


def axis_of(name: str) -> str:
    """What the second axis of the input `name` counts: tokens, or the input's own values."""
    return name if name in EXTRA_INPUTS else TOKENS


class Shape(NamedTuple):
    """Of a request: how many rows and tokens it has, and by name what its arrays have beside their
    rows, which is alike in those that are joined without padding."""

    rows: int
    tokens: int
    sizes: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(eq=False, slots=True)
class Item:
    """One request."""

    index: int
    arrays: Mapping[str, NDArray[Any]]
    shape: Shape

    def size(self, axis: str) -> int:
        """Tokens, or values of an extra input."""
        return self.shape.tokens if axis == TOKENS else int(self.arrays[axis].shape[1])


@dataclass(frozen=True)
class Group:
    """Items that run as one batch, padded to `length` where they are shorter."""

    items: tuple[Item, ...]
    length: int


@dataclass(frozen=True)
class Layout:
    """What is known of the graph's axes; nothing known means: every item runs alone.

    `joinable`: axis 0 of every tensor is the batch. `mask`: the attention mask, set when padding
    does not change an answer. `own_axes`: for each output the axes of a request's own size, and
    whether they follow its tokens or an extra input.
    """

    joinable: bool = False
    mask: str | None = None
    own_axes: Mapping[str, Mapping[int, str]] = field(default_factory=dict)


def plan_groups(items: Sequence[Item], layout: Layout) -> list[Group]:
    """Every item in exactly one group; longest groups first."""
    if len(items) == 1 or not layout.joinable:
        return [Group((item,), item.shape.tokens) for item in items]
    exact: dict[tuple[Any, ...], list[Item]] = defaultdict(list)
    for item in items:
        exact[item.shape.sizes].append(item)
    alike = sorted(exact.values(), key=lambda same: same[0].shape.tokens, reverse=True)
    if layout.mask:
        alike = _merged(alike)
    return [Group(tuple(some), some[0].shape.tokens) for some in alike]


def _merged(alike: Sequence[list[Item]]) -> list[list[Item]]:
    merged: list[list[Item]] = []
    rows = tokens = 0
    for same in alike:
        more = sum([item.shape.rows for item in same])
        rows, tokens = rows + more, tokens + more * same[0].shape.tokens
        if merged and _is_cheap(rows * merged[-1][0].shape.tokens, tokens):
            merged[-1] += same
        else:
            merged.append(same)
            rows, tokens = more, more * same[0].shape.tokens
    return merged


def _is_cheap(padded: int, tokens: int) -> bool:
    return padded - tokens <= max(FREE_TOKENS, WASTE * padded)


def join(group: Group) -> Arrays:
    """One batch of the group's items. Padding is zero, also in the mask and in extra inputs."""
    arrays = [item.arrays for item in group.items]
    if len(arrays) == 1:
        return dict(arrays[0])
    return {name: _stacked([one[name] for one in arrays]) for name in arrays[0]}


def _stacked(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    try:
        return np.concatenate(arrays)
    except ValueError:
        # Alike but for their second axis.
        shape = sum(map(len, arrays)), max([array.shape[1] for array in arrays])
    batch = np.zeros(shape, dtype=arrays[0].dtype)
    row = 0
    for array in arrays:
        rows, width = array.shape
        batch[row : row + rows, :width] = array
        row += rows
    return batch


def split(outputs: Arrays, group: Group, layout: Layout) -> list[Arrays]:
    """Each item's own rows, cut back to its own sizes; in the order of the group's items."""
    if len(group.items) == 1:
        return [outputs]
    ends = list(accumulate(item.shape.rows for item in group.items))
    rows = [slice(*bounds) for bounds in pairwise([0, *ends])]
    answers: list[Arrays] = [{} for _ in group.items]
    for name, array in outputs.items():
        axes = layout.own_axes.get(name)
        for answer, own, item in zip(answers, rows, group.items, strict=True):
            answer[name] = _cut(array[own], item, axes) if axes else array[own]
    return answers


def _cut(array: NDArray[Any], item: Item, axes: Mapping[int, str]) -> NDArray[Any]:
    index: list[slice] = [slice(None)] * array.ndim
    for axis, name in axes.items():
        index[axis] = slice(item.size(name))
    return array[tuple(index)]
