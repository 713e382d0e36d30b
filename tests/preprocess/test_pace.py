"""The rate of an engine, on a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from preprocess.pace import SAMPLE_S, Pace


def call(pace: Pace, now: float, tokens: int, seconds: float) -> float:
    pace.begin(tokens, now)
    pace.end(tokens, now + seconds, answered=True)
    return now + seconds


def test_before_the_first_answer_only_silence_is_known() -> None:
    pace = Pace()
    assert (pace.rate, pace.wait_s(10**6, 5.0)) == (None, 0.0)
    pace.begin(10, 5.0)
    assert pace.wait_s(10**6, 8.0) == 3.0


@given(st.floats(0.001, 5), st.integers(1, 5000), st.floats(0, 10**6))
def test_an_idle_engine_stays_as_fast_as_it_was(took: float, tokens: int, idle: float) -> None:
    pace = Pace()
    now = 0.0
    for _ in range(20):
        now = call(pace, now, tokens, took) + idle
    assert pace.rate == pytest.approx(tokens / took, rel=1e-3)
    assert pace.wait_s(2 * tokens, now) == pytest.approx(2 * took, rel=1e-3)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0.001, 2)), min_size=2, max_size=60))
def test_the_rate_lies_among_those_of_the_calls(calls: list[tuple[int, float]]) -> None:
    pace = Pace()
    now = 0.0
    for tokens, took in calls:
        now = call(pace, now, tokens, took)
    rates = [tokens / took for tokens, took in calls]
    assert pace.rate is not None
    assert min(rates) * 0.999 <= pace.rate <= max(rates) * 1.001


def test_two_calls_at_a_time_count_their_time_once() -> None:
    pace = Pace()
    pace.begin(100, 0.0)
    pace.begin(100, 0.0)
    for second in range(1, 20):
        pace.end(100, float(second), answered=True)
        pace.begin(100, float(second))
    assert pace.rate == pytest.approx(100)
    assert pace.call_s == pytest.approx(1.0)
    # Half of the first has gone by.
    assert pace.wait_s(0, 19.5) == pytest.approx(1.5)
    assert pace.wait_s(300, 19.5) == pytest.approx(4.5)


def test_one_pause_is_no_rate() -> None:
    pace = Pace()
    now = 0.0
    for took in (0.1, 0.1, 0.1, 30.0, 0.1):
        now = call(pace, now, 100, took)
    assert pace.rate == pytest.approx(1000)


def test_a_cold_first_call_says_nothing() -> None:
    """Else whoever came while the second ran would be told that it takes as long."""
    pace = Pace()
    now = call(pace, 0.0, 20, 4.0)
    assert pace.rate is None
    pace.begin(20, now)
    assert pace.wait_s(20, now + 0.1) == pytest.approx(0.1)
    pace.end(20, now + 0.1, answered=True)
    now += 0.1
    assert pace.rate == pytest.approx(200)
    for _ in range(4):
        now = call(pace, now, 20, SAMPLE_S)
    assert pace.rate == pytest.approx(5 * 20 / (0.1 + 4 * SAMPLE_S))


def test_an_engine_that_became_slower_is_slower() -> None:
    pace = Pace()
    now = 0.0
    for took in [0.1] * 20 + [1.0] * 9:
        now = call(pace, now, 100, took)
    assert pace.rate == pytest.approx(100)


def test_an_overdue_call_is_late_by_as_much_again() -> None:
    pace = Pace()
    now = 0.0
    for _ in range(9):
        now = call(pace, now, 100, 0.1)
    pace.begin(100, now)
    assert pace.wait_s(0, now + 0.1) == pytest.approx(0.0, abs=1e-9)
    assert pace.wait_s(0, now + 5.1) == pytest.approx(5.0)


def test_an_error_is_no_work() -> None:
    pace = Pace()
    now = call(pace, call(pace, 0.0, 100, 1.0), 100, 1.0)
    for _ in range(50):
        pace.begin(100, now)
        pace.end(100, now + 0.001, answered=False)
    assert pace.rate == pytest.approx(100)
    assert (pace.calls, pace.in_flight) == (0, 0)
