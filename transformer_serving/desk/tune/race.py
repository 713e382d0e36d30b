"""Rivals measured in turns until all but the best are surely worse: successive elimination.

In every round each rival that is left is measured once, so that what changes on the machine hits
all of them. Two are compared by the ratios of their figures in the same rounds. The bound on the
median of such ratios is an order statistic, which takes no distribution for granted (H. A. David
and H. N. Nagaraja, Order Statistics, 2003, section 7.1).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# After so many rounds it is looked who is surely worse, each time with CONFIDENCE: by the union
# bound a rival is wrongly left behind another with a chance of at most 3 times 2 %.
LOOKS = (6, 9, 12)
CONFIDENCE = 0.98


@dataclass(frozen=True)
class Bounds:
    """Of the median of ratios; 0 and infinity where the rounds are too few for that confidence."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Lane:
    """A rival's figures, one for each round that it ran; larger is better.

    `lost_to` is who it was surely worse than, and `against` by which ratio.
    """

    name: str
    figures: tuple[float, ...]
    lost_to: str | None = None
    against: Bounds | None = None


def bounds(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Bounds:
    """Each bound alone holds with `confidence`. Raises ValueError without a ratio."""
    if not ratios:
        raise ValueError("bounds need at least one round")
    ordered = sorted(ratios)
    rank = _rank(len(ordered), 1 - confidence)
    low, high = (0.0, math.inf) if rank < 0 else (ordered[rank], ordered[-1 - rank])
    return Bounds(statistics.median(ordered), low, high)


def _rank(rounds: int, error: float) -> int:
    """The place, from 0, of the bound; -1 where even the smallest value is not sure enough.

    The median lies below the k-th smallest of n values with the chance that fewer than k of n
    coins show heads.
    """
    rank, chance = -1, 0.0
    for heads in range((rounds + 1) // 2):
        chance += math.comb(rounds, heads) / 2.0**rounds
        if chance > error:
            break
        rank = heads
    return rank


def race(
    names: Sequence[str],
    measure: Callable[[str], float],
    go_on: Callable[[], bool] = lambda: True,
) -> tuple[Lane, ...]:
    """Every rival's lane, in the order of `names`.

    Ends when one is left, after the last look, or where `go_on` says no before a round. Raises
    ValueError for a name that is there twice.
    """
    if len(set(names)) != len(names):
        raise ValueError("a rival can run once")
    figures: dict[str, list[float]] = {name: [] for name in names}
    lost: dict[str, tuple[str, Bounds]] = {}
    for number in range(1, LOOKS[-1] + 1):
        left = [name for name in names if name not in lost]
        if len(left) < 2 or not go_on():
            break
        # Who goes first changes with every round.
        turn = number % len(left)
        for name in (*left[turn:], *left[:turn]):
            figures[name].append(measure(name))
        if number in LOOKS:
            lost |= surely_worse({name: figures[name] for name in left})
    return tuple(Lane(name, tuple(figures[name]), *lost.get(name, (None, None))) for name in names)


def surely_worse(figures: dict[str, list[float]]) -> dict[str, tuple[str, Bounds]]:
    """Those that another one is surely better than, each with the one that beats it furthest."""
    found = {}
    for name, mine in figures.items():
        ratios = {
            other: bounds(ratios_of(mine, theirs))
            for other, theirs in figures.items()
            if other != name
        }
        beaten = {other: ratio for other, ratio in ratios.items() if ratio.high < 1}
        if beaten:
            by = min(beaten, key=lambda other: beaten[other].median)
            found[name] = (by, beaten[by])
    return found


def ratios_of(over: Iterable[float], under: Iterable[float]) -> list[float]:
    """Round by round; a figure of 0, where nothing was answered, is infinitely worse."""
    return [
        top / bottom if bottom else (1.0 if not top else math.inf)
        for top, bottom in zip(over, under, strict=True)
    ]
