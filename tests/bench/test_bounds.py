"""How sure a median is."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from transformer_serving.desk.bench import bounds


@pytest.mark.parametrize(
    ("rounds", "rank"), [(1, 0), (5, 0), (7, 0), (8, 1), (11, 2), (20, 5), (100, 41)]
)
def test_the_bound_is_as_sure_as_it_says(rounds: int, rank: int) -> None:
    """The median is below the value at the rank when at most `rank` of the coins show heads."""
    assert bounds.bound_rank(rounds) == rank
    wrong = sum(math.comb(rounds, heads) for heads in range(rank + 1)) / 2**rounds
    assert wrong <= 0.05 or rank == 0


@pytest.mark.parametrize(("rounds", "rank"), [(1, 0), (2, 0), (3, 1), (8, 3), (9, 4)])
def test_however_little_sure_a_bound_is_it_is_not_beyond_the_median(rounds: int, rank: int) -> None:
    assert bounds.bound_rank(rounds, 0.0) == rank


@pytest.mark.parametrize(("median", "share"), [(10.0, 0.3), (0.0, 0.0)])
def test_how_far_the_bounds_are_is_a_share_of_the_median(median: float, share: float) -> None:
    assert bounds.Spread(median, 8.0, 14.0, rounds=7).share == pytest.approx(share)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40))
def test_a_spread_holds_its_median(values: list[float]) -> None:
    found = bounds.spread(values)
    assert min(values) <= found.lower <= found.median <= found.upper <= max(values)
    assert found.rounds == len(values)


def test_a_ratio_is_taken_inside_a_round() -> None:
    assert bounds.ratios([4.0, None, 9.0, 8.0], [2.0, 5.0, 3.0, None]) == [2.0, 3.0]


def test_a_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one round"):
        bounds.spread([])


@pytest.mark.parametrize(("confidence", "rounds"), [(0.95, 5), (0.98, 6), (0.5, 1)])
def test_with_fewer_rounds_no_bound_is_so_sure(confidence: float, rounds: int) -> None:
    assert bounds.fewest_rounds(confidence) == rounds
    assert 0.5**rounds <= 1 - confidence < 0.5 ** (rounds - 1)
