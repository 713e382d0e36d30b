"""What an allowed precision saves, by a clock that each call moves by its own time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.parity.test_latency import FEEDS
from transformer_serving.desk.bench.bounds import Spread
from transformer_serving.desk.parity import latency
from transformer_serving.desk.parity.gain import LEAST, ROUNDS, Gain, ShapeGain, gain_of
from transformer_serving.desk.parity.latency import Contender


class Clock:
    """Stands in for the time module."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def contender(self, precision: str, seconds: Mapping[int, float]) -> Contender:
        """Its calls take `seconds` by their texts."""

        def call(feed: Any) -> None:
            self.now += seconds[len(feed["input_ids"])]

        return Contender("engine", precision, call, 0.0, True)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(latency, "time", made)
    return made


def measured(clock: Clock, int8: Mapping[int, float]) -> tuple[Gain, list[tuple[str, int, int]]]:
    told: list[tuple[str, int, int]] = []
    gain = gain_of(
        clock.contender("int8", int8),
        clock.contender("bf16", {1: 0.002, 32: 0.030}),
        FEEDS,
        (32, 40),
        lambda shape, done, total: told.append((shape, done, total)),
    )
    return gain, told


def test_each_shape_has_its_own_gain_and_every_round_is_told(clock: Clock) -> None:
    gain, told = measured(clock, {1: 0.001, 32: 0.020})
    assert [(one.texts, one.tokens) for one in gain.shapes] == [(1, 16), (1, 40), (32, 32)]
    assert [one.times.median for one in gain.shapes] == pytest.approx([2.0, 2.0, 1.5])
    assert gain.is_taken
    assert str(gain) == (
        "int8 is so many times as fast as bf16 here, by calls of texts x tokens: 1x16 2.00 times "
        "(2.00 to 2.00), 1x40 2.00 times (2.00 to 2.00), 32x32 1.50 times (1.50 to 1.50); so it is "
        "taken"
    )
    assert gain.measured["processor"]
    assert len(told) == 3 * ROUNDS
    assert told[0] == ("1x16", 0, 3 * ROUNDS)
    assert told[-1] == ("32x32", 3 * ROUNDS - 1, 3 * ROUNDS)


def test_one_slower_shape_is_enough_to_stay(clock: Clock) -> None:
    gain, _ = measured(clock, {1: 0.001, 32: 0.029})
    assert not gain.is_taken
    assert str(gain).endswith(f"; {LEAST:g} at each are wanted")


def test_no_call_is_larger_than_the_endpoints(clock: Clock) -> None:
    same = clock.contender("int8", {1: 0.001, 6: 0.002})
    gain = gain_of(same, same, FEEDS, (6, 40), lambda shape, done, total: None)
    assert [(one.texts, one.tokens) for one in gain.shapes] == [(1, 16), (1, 40), (6, 32)]


@pytest.mark.parametrize(("lower", "taken"), [(LEAST, True), (LEAST - 0.01, False)])
def test_the_unsure_side_of_the_bound_counts(lower: float, taken: bool) -> None:
    shape = ShapeGain(1, 16, Spread(LEAST + 0.2, lower, LEAST + 0.5, ROUNDS))
    assert Gain("int8", "bf16", LEAST, (shape,), {}).is_taken == taken
