"""The sentence about the shapes at which an engine is wrong: few words for many shapes.

Tested by tests/engine/proof/test_verdict.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST_LENGTHS = 6
_MOST_GROUPS = 4


@dataclass(frozen=True)
class Fault:
    """What is wrong at one shape; the highest `rank` is the worst."""

    length: int
    batch: int
    what: str
    rank: tuple[bool, float, float]


def sentence(
    faults: Sequence[Fault], asked: Mapping[int, Sequence[int]], largest: Mapping[int, int]
) -> str:
    """Such as "at 32 tokens, any batch: cosine 0.69 where 0.98 is allowed".

    `asked` are the batches of each length, `largest` the most texts that a call of it has.
    """
    groups: dict[frozenset[str], list[int]] = {}
    for length, batches in asked.items():
        wrong = [one.batch for one in faults if one.length == length]
        if wrong:
            groups.setdefault(_places(wrong, batches, largest[length]), []).append(length)
    parts = []
    for lengths in list(groups.values())[:_MOST_GROUPS]:
        own = [one for one in faults if one.length in lengths]
        worst = max(own, key=lambda one: one.rank)
        every = len(lengths) == len(asked) > 1
        parts.append(f"at {_lengths(lengths, every)}{_batches(own, asked)}: {worst.what}")
    left = len(groups) - len(parts)
    return "; ".join(parts) + (f"; and in {left} other ways" if left else "")


def _places(wrong: Sequence[int], batches: Sequence[int], largest: int) -> frozenset[str]:
    """Which of a length's batches: lengths with the same ones are named together."""
    if set(wrong) == set(batches):
        return frozenset({"any"})
    return frozenset("largest" if size == largest else str(size) for size in wrong)


def _lengths(lengths: Sequence[int], every: bool) -> str:
    if every:
        return "every length"
    ordered = sorted(lengths)
    if len(ordered) > _MOST_LENGTHS:
        return f"{len(ordered)} lengths from {ordered[0]} to {ordered[-1]} tokens"
    return f"{_listed(ordered)} tokens"


def _batches(faults: Sequence[Fault], asked: Mapping[int, Sequence[int]]) -> str:
    length = faults[0].length
    if {one.batch for one in faults if one.length == length} == set(asked[length]):
        return ", any batch"
    sizes = sorted({one.batch for one in faults})
    if sizes == [1]:
        return " alone"
    batches = f"batches of {_listed([size for size in sizes if size > 1])}"
    return f" alone and in {batches}" if sizes[0] == 1 else f" in {batches}"


def _listed(numbers: Sequence[int]) -> str:
    *others, last = map(str, numbers)
    return f"{', '.join(others)} and {last}" if others else last
