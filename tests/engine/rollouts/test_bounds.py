"""Bounds hold what they say: against published figures, and against draws with a known truth."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as some

from transformer_serving.contract.rollout import bin_of, bound_of
from transformer_serving.engine.controller.rollouts import bounds

Z95 = bounds.normal_of(0.025)
DRAWS = 2_000


def times_of(seconds: list[float]) -> dict[int, int]:
    found: dict[int, int] = {}
    for value in seconds:
        at = bin_of(value)
        found[at] = found.get(at, 0) + 1
    return found


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3.
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_a_share_is_wilsons(hits: int, total: int, low: float, high: float) -> None:
    assert bounds.share(hits, total, Z95) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(
    ("new", "old", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998) 873-890, table II, method 10.
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((10, 10), (0, 20), 0.6791, 1.0),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_an_excess_is_newcombes(
    new: tuple[int, int], old: tuple[int, int], low: float, high: float
) -> None:
    assert bounds.excess(new, old, Z95) == pytest.approx((low, high), abs=1e-4)


def test_of_nothing_everything_is_possible() -> None:
    assert bounds.share(0, 0, Z95) == (0, 1)
    assert bounds.excess((0, 0), (5, 10), Z95) == (-1, 1)
    assert bounds.quantile_bounds({}, 0.5, Z95) == (0, math.inf)


@given(some.integers(0, 500), some.integers(1, 500), some.floats(0.5, 5))
def test_a_share_lies_between_its_bounds(hits: int, more: int, z: float) -> None:
    total = hits + more
    low, high = bounds.share(hits, total, z)
    assert 0 <= low <= hits / total <= high <= 1


def test_at_either_end_a_share_is_exact() -> None:
    for total in range(1, 500):
        assert bounds.share(0, total, Z95).low == 0
        assert bounds.share(total, total, Z95).high == 1


@given(some.integers(0, 200), some.integers(1, 200), some.integers(0, 200), some.integers(1, 200))
def test_an_excess_turned_round_is_the_other_way(a: int, b: int, c: int, d: int) -> None:
    one, other = (a, a + b), (c, c + d)
    there, back = bounds.excess(one, other, Z95), bounds.excess(other, one, Z95)
    assert there == pytest.approx((-back.high, -back.low))


@pytest.mark.parametrize(
    ("total", "q", "low", "high"),
    # Of the normal approximation n q -+ 1.96 sqrt(n q (1 - q)), the next ranks outwards.
    [(400, 0.5, 180, 221), (400, 0.9, 348, 373), (60, 0.9, 49, 60), (8, 0.5, 1, 8),
     (20, 0.99, 18, None), (1, 0.5, None, None)],
)  # fmt: skip
def test_the_bounds_of_a_quantile_are_these_ranks(
    total: int, q: float, low: int | None, high: int | None
) -> None:
    """Each time has a bin of its own: that of a rank is the one before it, from 0."""
    found = bounds.quantile_bounds(dict.fromkeys(range(total), 1), q, Z95)
    assert found.low == (0.0 if low is None else bound_of(low - 1))
    assert found.high == (math.inf if high is None else bound_of(high - 1))


def test_what_is_slower_than_a_bin_holds_is_slower_than_its_bound() -> None:
    times = {4: 1, 5: 2, 6: 3}
    assert [bounds.slower_than(times, bound_of(at)) for at in (3, 4, 5, 6)] == [6, 5, 3, 0]


def test_the_truth_is_within_as_often_as_is_said() -> None:
    """Of the difference of two shares; Newcombe found its coverage near what is said."""
    random.seed(7)
    within = 0
    for _ in range(DRAWS):
        new = sum(random.random() < 0.05 for _ in range(200)), 200
        old = sum(random.random() < 0.01 for _ in range(300)), 300
        low, high = bounds.excess(new, old, Z95)
        within += low <= 0.04 <= high
    assert within / DRAWS > 0.93


def test_a_quantile_is_within_as_often_as_is_said() -> None:
    random.seed(8)
    within = 0
    for _ in range(DRAWS):
        times = times_of([random.expovariate(100) for _ in range(400)])
        low, high = bounds.quantile_bounds(times, 0.5, Z95)
        # The bins' own width lies on either side.
        within += low / 1.1 <= math.log(2) / 100 <= high
    assert within / DRAWS > 0.93


@given(some.lists(some.floats(1e-3, 10), min_size=1), some.sampled_from([0.5, 0.9, 0.99]))
def test_a_quantile_is_the_bin_of_the_one_of_its_rank(seconds: list[float], q: float) -> None:
    found = bounds.quantile(times_of(seconds), q)
    assert found == bound_of(bin_of(sorted(seconds)[math.ceil(q * len(seconds)) - 1]))


@given(some.lists(some.floats(1e-3, 10), min_size=1), some.floats(1e-3, 10))
def test_slower_is_surely_slower(seconds: list[float], limit: float) -> None:
    found = bounds.slower_than(times_of(seconds), limit)
    assert found <= sum(value > limit * (1 - 1e-9) for value in seconds)
    # Whoever is slower by more than a bin's width, 9 %, is among them.
    assert found >= sum(value > limit * 1.1 for value in seconds)
