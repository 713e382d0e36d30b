"""Medians, and how sure they are: bounds from the order of the rounds, without a distribution.

An order statistic bounds the median whatever the figures are distributed like (H. A. David and
H. N. Nagaraja, Order Statistics, 2003, section 7.1).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# How sure a bound is that the true median lies on its right side, unless it is said.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Spread:
    """A figure over the rounds. `lower` and `upper` each hold for the median with the confidence
    that was asked for, where `bound_rank` says that so many rounds give it."""

    median: float
    lower: float
    upper: float
    rounds: int

    @property
    def share(self) -> float:
        """Half the width between the bounds, as a share of the median."""
        return (self.upper - self.lower) / 2 / self.median if self.median else 0.0


def spread(values: Sequence[float], confidence: float = CONFIDENCE) -> Spread:
    """The spread of one figure a round. Raises ValueError without a value."""
    if not values:
        raise ValueError("a spread needs at least one round")
    ordered = sorted(values)
    rank = bound_rank(len(ordered), confidence)
    return Spread(statistics.median(ordered), ordered[rank], ordered[-1 - rank], len(ordered))


def bound_rank(rounds: int, confidence: float = CONFIDENCE) -> int:
    """The place, from 0, of the ordered value that bounds the median with that confidence.

    The median is below the k-th smallest of n values with the chance that fewer than k of n coins
    show heads. For 95 % it is with 7 rounds the smallest (99 %), with 8 the second smallest (96 %);
    with fewer than 5 the smallest is less sure than 95 %, and there is no better.
    """
    rank = 0
    while rank + 1 <= (rounds - 1) // 2 and _chance(rounds, rank + 1) <= 1 - confidence:
        rank += 1
    return rank


def fewest_rounds(confidence: float = CONFIDENCE) -> int:
    """With fewer no bound is so sure."""
    return math.ceil(-math.log2(1 - confidence))


def _chance(rounds: int, rank: int) -> float:
    """Chance that the median lies below the value at `rank`."""
    return sum(math.comb(rounds, heads) for heads in range(rank + 1)) / 2.0**rounds


def ratios(over: Sequence[float | None], under: Sequence[float | None]) -> list[float]:
    """Round by round, where both were measured."""
    return [
        top / bottom for top, bottom in zip(over, under, strict=True) if top is not None and bottom
    ]
