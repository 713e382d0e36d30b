"""Bounds on shares, their difference and a quantile, of counts alone.

Wilson's score interval (E. B. Wilson, JASA 22, 1927), Newcombe's difference of two such (R. G.
Newcombe, Statistics in Medicine 17, 1998, method 10), and order statistics for a quantile, whose
rank is binomial (H. A. David and H. N. Nagaraja, Order Statistics, 2003, section 7.1; the normal
approximation of the rank).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import NamedTuple

from transformer_serving.contract.rollout import bound_of


class Interval(NamedTuple):
    low: float
    high: float


def normal_of(error: float) -> float:
    """How many standard deviations leave that probability beyond them, on one side."""
    return NormalDist().inv_cdf(1 - error)


def share(hits: int, total: int, z: float) -> Interval:
    """Of a share; everything is possible where there was nothing."""
    if not total:
        return Interval(0.0, 1.0)
    p, square = hits / total, z * z
    middle = p + square / (2 * total)
    width = z * math.sqrt(p * (1 - p) / total + square / (4 * total * total))
    whole = 1 + square / total
    # At either end it is exact, which rounding would miss.
    low = 0.0 if hits == 0 else max(0.0, (middle - width) / whole)
    high = 1.0 if hits == total else min(1.0, (middle + width) / whole)
    return Interval(low, high)


def excess(new: tuple[int, int], old: tuple[int, int], z: float) -> Interval:
    """Of the share of the new minus that of the old, each as hits and total."""
    if not new[1] or not old[1]:
        return Interval(-1.0, 1.0)
    mine, theirs = new[0] / new[1], old[0] / old[1]
    of_new, of_old = share(*new, z), share(*old, z)
    difference = mine - theirs
    return Interval(
        difference - math.hypot(mine - of_new.low, of_old.high - theirs),
        difference + math.hypot(of_new.high - mine, theirs - of_old.low),
    )


def quantile(times: Mapping[int, int], q: float) -> float:
    """The upper bound of the bin in which it lies, in seconds; 0 where there are no times."""
    total = sum(times.values())
    return _at_rank(times, math.ceil(q * total)) if total else 0.0


def quantile_bounds(times: Mapping[int, int], q: float, z: float) -> Interval:
    """Of the quantile of what the times are a sample of; as wide as can be where they are few."""
    total = sum(times.values())
    width = z * math.sqrt(total * q * (1 - q))
    low, high = math.floor(q * total - width), math.ceil(q * total + width) + 1
    return Interval(
        _at_rank(times, low) if low >= 1 else 0.0,
        _at_rank(times, high) if high <= total else math.inf,
    )


def slower_than(times: Mapping[int, int], seconds: float) -> int:
    """How many are in bins that lie wholly above."""
    return sum(number for at, number in times.items() if bound_of(at - 1) >= seconds)


def _at_rank(times: Mapping[int, int], rank: int) -> float:
    before = 0
    for at in sorted(times):
        before += times[at]
        if before >= rank:
            return bound_of(at)
    return bound_of(max(times, default=0))
