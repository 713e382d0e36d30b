"""The race of settings: who is left, who is left behind, and how often wrongly."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings, strategies as some

from transformer_serving.desk.tune.race import LOOKS, bounds, race, ratios_of

RATIOS = some.lists(some.floats(0.01, 100), min_size=1, max_size=40)


@given(RATIOS)
def test_bounds_enclose_the_median(ratios: list[float]) -> None:
    found = bounds(ratios)
    assert found.low <= found.median <= found.high


def test_few_rounds_are_sure_of_nothing() -> None:
    """The smallest of five is a bound with 97 %, that of six with 98.4 %."""
    assert bounds([0.5] * 5).high == math.inf
    assert bounds([0.5] * 6).high == 0.5


@given(some.lists(some.floats(0.1, 10), min_size=2, max_size=5, unique=True))
def test_without_noise_the_fastest_alone_is_left_at_the_first_look(speeds: list[float]) -> None:
    names = [str(number) for number in range(len(speeds))]
    lanes = race(names, lambda name: speeds[int(name)])
    assert [lane.name for lane in lanes if lane.lost_to is None] == [str(speeds.index(max(speeds)))]
    assert {len(lane.figures) for lane in lanes} == {LOOKS[0]}


@settings(max_examples=20)
@given(some.integers(0, 2**32))
def test_somebody_is_always_left(seed: int) -> None:
    source = random.Random(seed)
    lanes = race("abcd", lambda name: source.lognormvariate(0, 0.5))
    assert any(lane.lost_to is None for lane in lanes)


def test_of_two_equals_one_is_seldom_left_behind() -> None:
    """A race of equals is decided wrongly, in either direction, in at most 2 times 6 %."""
    source = random.Random(5)
    wrong = sum(
        any(lane.lost_to for lane in race("ab", lambda name: source.lognormvariate(0, 0.1)))
        for _ in range(2000)
    )
    assert wrong / 2000 <= 0.12


def test_a_round_in_which_the_machine_was_slow_counts_for_both() -> None:
    """Each figure varies tenfold over time, the ratio within a round does not."""
    rounds = itertools.count()
    lanes = race("ab", lambda name: (1 + next(rounds) // 2 % 10) * (1.1 if name == "b" else 1.0))
    assert [lane.lost_to for lane in lanes] == ["b", None]


def test_time_that_is_up_ends_it() -> None:
    left = iter([True, True, False])
    lanes = race("ab", lambda name: 1.0, lambda: next(left))
    assert [len(lane.figures) for lane in lanes] == [2, 2]


def test_nothing_answered_is_worse_than_anything() -> None:
    lanes = race("ab", lambda name: 0.0 if name == "a" else 1.0)
    assert [lane.lost_to for lane in lanes] == ["b", None]
    assert ratios_of([0.0, 1.0], [0.0, 0.0]) == [1.0, math.inf]


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="once"):
        race("aa", lambda name: 1.0)
