"""Which requests of one execute() run together, and how their results come apart again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

# Joining two lengths costs padding; a run of its own costs about as much as this many tokens
# (a few tenths of a millisecond), whatever the share of padding.
FREE_TOKENS = 32
# Beyond that, at most this share of a joined run may be padding.
WASTE = 0.125

TOKENS = "tokens"
# Inputs whose second axis is their own (contract.heads); that of all others is the tokens'.
EXTRA_INPUTS = ("mask_positions", "candidates")


def axis_of(name: str) -> str:
    """What the second axis of the input `name` counts: tokens, or the input's own values."""
    return name if name in EXTRA_INPUTS else TOKENS


@dataclass(frozen=True)
class Item:
    """One request: its arrays, and how many rows and tokens they have."""

    index: int
    arrays: Arrays
    rows: int
    length: int

    @property
    def shape_key(self) -> tuple[Any, ...]:
        return tuple((name, array.shape[1:]) for name, array in sorted(self.arrays.items()))

    def size(self, axis: str) -> int:
        """Tokens, or values of an extra input."""
        return self.length if axis == TOKENS else int(self.arrays[axis].shape[1])


@dataclass(frozen=True)
class Group:
    """Items that run as one batch, padded to `length` where they are shorter."""

    items: tuple[Item, ...]
    length: int

    @property
    def rows(self) -> int:
        return sum(item.rows for item in self.items)

    @property
    def tokens(self) -> int:
        return sum(item.rows * item.length for item in self.items)


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
    if not layout.joinable:
        return [Group((item,), item.length) for item in items]
    exact: dict[tuple[Any, ...], list[Item]] = defaultdict(list)
    for item in items:
        exact[item.shape_key].append(item)
    groups = [Group(tuple(same), same[0].length) for same in exact.values()]
    groups.sort(key=lambda group: -group.length)
    return _merge(groups) if layout.mask else groups


def _merge(groups: Sequence[Group]) -> list[Group]:
    merged: list[Group] = []
    for group in groups:
        if merged and _cheap(merged[-1], group):
            merged[-1] = Group((*merged[-1].items, *group.items), merged[-1].length)
        else:
            merged.append(group)
    return merged


def _cheap(longer: Group, shorter: Group) -> bool:
    padded = (longer.rows + shorter.rows) * longer.length
    waste = padded - longer.tokens - shorter.tokens
    return waste <= max(FREE_TOKENS, WASTE * padded)


def join(group: Group) -> Arrays:
    """One batch of the group's items. Padding is zero, also in the mask and in extra inputs."""
    if len(group.items) == 1:
        return group.items[0].arrays
    return {
        name: _stacked([item.arrays[name] for item in group.items])
        for name in group.items[0].arrays
    }


def _stacked(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    shape = (sum(len(array) for array in arrays), max(array.shape[1] for array in arrays))
    batch = np.zeros(shape, dtype=arrays[0].dtype)
    row = 0
    for array in arrays:
        batch[row : row + len(array), : array.shape[1]] = array
        row += len(array)
    return batch


def split(outputs: Arrays, group: Group, layout: Layout) -> list[Arrays]:
    """Each item's own rows, cut back to its own sizes; in the order of the group's items."""
    if len(group.items) == 1:
        return [outputs]
    answers: list[Arrays] = []
    row = 0
    for item in group.items:
        rows = slice(row, row + item.rows)
        answers.append(
            {
                name: _cut(array[rows], item, layout.own_axes.get(name, {}))
                for name, array in outputs.items()
            }
        )
        row += item.rows
    return answers


def _cut(array: NDArray[Any], item: Item, axes: Mapping[int, str]) -> NDArray[Any]:
    index: list[slice] = [slice(None)] * array.ndim
    for axis, name in axes.items():
        index[axis] = slice(item.size(name))
    return array[tuple(index)]
