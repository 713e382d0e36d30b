"""Which requests of one execute() run together, and how their results come apart again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

# Joining two lengths costs padding; a run of its own costs about as much as this many tokens
# (a few tenths of a millisecond), whatever the share of padding.
FREE_TOKENS = 32
# Beyond that, at most this share of a joined run may be padding.
WASTE = 0.125


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
    does not change an answer. `token_axes`: for each output the axes that follow the tokens.
    """

    joinable: bool = False
    mask: str | None = None
    token_axes: Mapping[str, tuple[int, ...]] | None = None


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
    """One batch of the group's items. Padding is zero, also in the mask."""
    if len(group.items) == 1:
        return group.items[0].arrays
    first = group.items[0].arrays
    if all(item.length == group.length for item in group.items):
        return {name: np.concatenate([item.arrays[name] for item in group.items]) for name in first}
    batch = {
        name: np.zeros((group.rows, group.length), dtype=array.dtype)
        for name, array in first.items()
    }
    row = 0
    for item in group.items:
        for name, array in item.arrays.items():
            batch[name][row : row + item.rows, : item.length] = array
        row += item.rows
    return batch


def split(outputs: Arrays, group: Group, layout: Layout) -> list[Arrays]:
    """Each item's own rows, cut back to its own length; in the order of the group's items."""
    if len(group.items) == 1:
        return [outputs]
    answers: list[Arrays] = []
    row = 0
    for item in group.items:
        rows = slice(row, row + item.rows)
        answers.append(
            {
                name: _cut(array[rows], item.length, (layout.token_axes or {}).get(name, ()))
                for name, array in outputs.items()
            }
        )
        row += item.rows
    return answers


def _cut(array: NDArray[Any], length: int, axes: Sequence[int]) -> NDArray[Any]:
    index: list[slice] = [slice(None)] * array.ndim
    for axis in axes:
        index[axis] = slice(length)
    return array[tuple(index)]
