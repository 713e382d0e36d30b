"""The race of settings: who is left, who is left behind, and how often wrongly."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings, strategies as some

from transformer_serving.desk.bench.bounds import fewest_rounds
from transformer_serving.desk.tune.race import CONFIDENCE, LOOKS, race, ratios_of


@given(some.lists(some.floats(0.1, 10), min_size=2, max_size=5, unique=True))
def test_without_noise_the_fastest_alone_is_left_at_the_first_look(speeds: list[float]) -> None:
    names = [str(number) for number in range(len(speeds))]
    lanes = race(names, lambda name, _: speeds[int(name)])
    assert [lane.name for lane in lanes if lane.lost_to is None] == [str(speeds.index(max(speeds)))]
    assert {len(lane.figures) for lane in lanes} == {LOOKS[0]}


@settings(max_examples=20)
@given(some.integers(0, 2**32))
def test_somebody_is_always_left(seed: int) -> None:
    source = random.Random(seed)
    lanes = race("abcd", lambda name, _: source.lognormvariate(0, 0.5))
    assert any(lane.lost_to is None for lane in lanes)


def test_of_two_equals_one_is_seldom_left_behind() -> None:
    """A race of equals is decided wrongly, in either direction, in at most 2 times 8 %."""
    source = random.Random(5)
    wrong = sum(
        any(lane.lost_to for lane in race("ab", lambda name, _: source.lognormvariate(0, 0.1)))
        for _ in range(2000)
    )
    assert wrong / 2000 <= 0.16


def test_a_round_in_which_the_machine_was_slow_counts_for_both() -> None:
    """Each figure varies tenfold over time, the ratio within a round does not."""
    rounds = itertools.count()
    lanes = race("ab", lambda name, _: (1 + next(rounds) // 2 % 10) * (1.1 if name == "b" else 1.0))
    assert [lane.lost_to for lane in lanes] == ["b", None]


def test_time_that_is_up_ends_it() -> None:
    left = iter([True, True, False])
    lanes = race("ab", lambda name, _: 1.0, lambda: next(left))
    assert [len(lane.figures) for lane in lanes] == [2, 2]


def test_nothing_answered_is_worse_than_anything() -> None:
    lanes = race("ab", lambda name, _: 0.0 if name == "a" else 1.0)
    assert [lane.lost_to for lane in lanes] == ["b", None]
    assert ratios_of([0.0, 1.0], [0.0, 0.0]) == [1.0, math.inf]


def test_the_first_look_has_rounds_enough() -> None:
    assert LOOKS[0] >= fewest_rounds(CONFIDENCE)


def test_without_looks_all_run_to_the_end() -> None:
    lanes = race("ab", lambda name, _: 1.0 if name == "a" else 2.0, looks=(), rounds=15)
    assert [(len(lane.figures), lane.lost_to) for lane in lanes] == [(15, None)] * 2


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="once"):
        race("aa", lambda name, _: 1.0)
