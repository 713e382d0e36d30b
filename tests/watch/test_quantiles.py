"""Quantiles of buckets: PromQL's own cases, and what holds for every histogram."""

from __future__ import annotations

import bisect
import math
from itertools import accumulate

import pytest
from hypothesis import given, strategies as st

from transformer_serving.desk.watch.quantiles import histogram_quantile

INF = math.inf
BOUNDS = (0.001, 0.01, 0.1, 1.0, INF)
times = st.lists(st.floats(0, 5, allow_nan=False), min_size=1, max_size=200)
quantiles = st.floats(0.001, 1)


def buckets_of(values: list[float]) -> dict[float, float]:
    """As prometheus_client counts them: a value at a bound is below it."""
    ordered = sorted(values)
    return {bound: float(bisect.bisect_right(ordered, bound)) for bound in BOUNDS}


@pytest.mark.parametrize(
    ("q", "buckets", "wanted"),
    [
        (0.5, {1: 10, 2: 20, INF: 20}, 1.0),
        (0.75, {1: 10, 2: 20, INF: 20}, 1.5),
        # The lowest bucket begins at 0.
        (0.25, {1: 10, 2: 20, INF: 20}, 0.5),
        # In the one without an end: the highest finite bound.
        (0.99, {1: 10, 2: 20, INF: 100}, 2),
        (1.0, {1: 10, 2: 20, INF: 20}, 2.0),
        # A lowest bucket that ends at or below 0 has no width.
        (0.1, {-1: 10, 2: 20, INF: 20}, -1),
        # Counts that fall are taken as level.
        (0.5, {1: 10, 2: 8, INF: 10}, 0.5),
        (0.5, {1: 0, 2: 0, INF: 0}, None),
        (0.5, {INF: 10}, None),
        (0.5, {1: 10, 2: 20}, None),
        (0.5, {}, None),
    ],
)
def test_as_promql(q: float, buckets: dict[float, float], wanted: float | None) -> None:
    assert histogram_quantile(q, buckets) == wanted


@given(times, quantiles)
def test_it_lies_in_the_bucket_of_the_observation_of_that_rank(
    values: list[float], q: float
) -> None:
    found = histogram_quantile(q, buckets_of(values))
    assert found is not None
    true = sorted(values)[math.ceil(q * len(values)) - 1]
    at = bisect.bisect_left(BOUNDS, true)
    if BOUNDS[at] == INF:
        assert found == BOUNDS[-2]
    else:
        low = BOUNDS[at - 1] if at else 0.0
        assert low <= found <= BOUNDS[at] * (1 + 1e-12)


@given(times, quantiles, quantiles)
def test_a_higher_quantile_is_no_lower(values: list[float], one: float, other: float) -> None:
    low, high = sorted((one, other))
    buckets = buckets_of(values)
    below, above = histogram_quantile(low, buckets), histogram_quantile(high, buckets)
    assert below is not None
    assert above is not None
    assert below <= above * (1 + 1e-12)


@given(times, quantiles, st.integers(2, 1000))
def test_as_many_times_the_observations_change_nothing(
    values: list[float], q: float, times_more: int
) -> None:
    buckets = buckets_of(values)
    more = {bound: count * times_more for bound, count in buckets.items()}
    assert histogram_quantile(q, more) == pytest.approx(histogram_quantile(q, buckets))


@given(st.lists(st.integers(0, 50), min_size=2, max_size=12), quantiles)
def test_any_counts_have_a_quantile_within_the_bounds(counts: list[int], q: float) -> None:
    bounds = [*(0.5 * (at + 1) for at in range(len(counts) - 1)), INF]
    buckets = dict(zip(bounds, map(float, accumulate(counts)), strict=True))
    found = histogram_quantile(q, buckets)
    if sum(counts):
        assert found is not None
        assert 0 <= found <= bounds[-2]
    else:
        assert found is None
