"""The rate of an engine, on a clock that the test turns."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from preprocess.queue.cost import OwnCost, Sample
from preprocess.queue.pace import PASSED, SAMPLE_S, Pace, Running

# As of a GPU.
GPU = OwnCost(3600)


def call(pace: Pace, now: float, tokens: int, seconds: float) -> float:
    running = pace.begin(tokens, now)
    pace.end(running, now + seconds, answered=True)
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
    running = [pace.begin(100, 0.0), pace.begin(100, 0.0)]
    for second in range(1, 20):
        pace.end(running.pop(0), float(second), answered=True)
        running.append(pace.begin(100, float(second)))
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
    second = pace.begin(20, now)
    assert pace.wait_s(20, now + 0.1) == pytest.approx(0.1)
    pace.end(second, now + 0.1, answered=True)
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


def with_a_call() -> tuple[Pace, float]:
    """Of 1,000 tokens a second, and a call of 100 that begins now."""
    pace = Pace()
    now = 0.0
    for _ in range(9):
        now = call(pace, now, 100, 0.1)
    pace.begin(100, now)
    return pace, now


def test_an_overdue_call_is_late_by_as_much_again() -> None:
    pace, now = with_a_call()
    assert pace.wait_s(0, now + 0.1) == pytest.approx(0.0, abs=1e-9)
    assert pace.wait_s(0, now + 5.1) == pytest.approx(5.0)


def test_idle_time_beside_a_call_that_hangs_is_none_of_work() -> None:
    pace = Pace()
    now = 0.0
    for _ in range(20):
        now = call(pace, now, 20, SAMPLE_S)
    fast = pace.rate
    hangs = pace.begin(20, now)
    for _ in range(PASSED):
        now = call(pace, now, 20, SAMPLE_S)
    assert (pace.calls, pace.in_flight, pace.wait_s(0, now + 9, free=True)) == (0, 0, 0.0)
    # Without a slot that is free it is what everybody waits for.
    assert pace.wait_s(0, now + 9) == pytest.approx(9)
    for _ in range(20):
        now = call(pace, now + 9, 20, SAMPLE_S)
    assert pace.rate == pytest.approx(fast)
    pace.end(hangs, now, answered=False)
    assert pace.rate == pytest.approx(fast)
    assert (pace.calls, pace.in_flight) == (0, 0)


@given(st.integers(1, 8000), st.lists(st.floats(0, 1), min_size=PASSED, max_size=20))
def test_a_long_call_beside_others_is_counted_with_its_time(tokens: int, gaps: list[float]) -> None:
    """A long text on one server, short ones on another: together all tokens and all seconds."""
    pace = Pace()
    pace.end(pace.begin(1, 0.0), 0.0, answered=True)
    first = now = 10.0
    long = pace.begin(tokens, now)
    for gap in gaps:
        now = call(pace, now + gap, 20, 0.01)
    pace.end(long, now + 1, answered=True)
    seconds = now + 1 - first
    counted = [*pace._samples, Sample(*pace._begun)]
    assert sum(one.tokens for one in counted) == 1 + tokens + 20 * len(gaps)
    assert sum(one.seconds for one in counted) == pytest.approx(seconds)
    assert (pace.calls, pace.in_flight) == (0, 0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 100)), min_size=1, max_size=30))
def test_each_second_in_which_a_call_ran_counts_once(calls: list[tuple[int, int]]) -> None:
    """However they overtake each other, once all are answered."""
    spans, begun = [], 0
    for gap, took in calls:
        begun += gap
        spans.append((begun, begun + took))
    union, until = 0, 0
    for start, end in spans:
        union += max(0, end - max(start, until))
        until = max(until, end)
    moments = [(start, 1, at) for at, (start, _) in enumerate(spans)]
    moments += [(end, 0, at) for at, (_, end) in enumerate(spans)]
    pace = Pace()
    running: dict[int, Running] = {}
    for now, begins, at in sorted(moments):
        if begins:
            running[at] = pace.begin(1, float(now))
        else:
            pace.end(running.pop(at), float(now), answered=True)
    assert pace._worked == pytest.approx(union)
    assert (pace.calls, pace.in_flight, pace._working, pace._running) == (0, 0, 0, [])


def test_what_is_ahead_may_end_at_once_where_it_is_overdue() -> None:
    pace, now = with_a_call()
    assert pace.call_ends_s(1000, now) == pytest.approx(0.2)
    assert pace.call_ends_s(1000, now + 0.05) == pytest.approx(0.15)
    assert pace.call_ends_s(1000, now + 60) == pytest.approx(0.1)
    assert pace.call_ends_s(50, now + 60) == pytest.approx(0.05)


def on_servers(pace: Pace, servers: int, *, alone: int, early: int) -> None:
    """Calls of 20 tokens, a second each: by themselves, then each sent amid the last one."""
    now = 100.0
    for _ in range(alone):
        now = call(pace, now, 20, 1.0) + 5
    running, free = [], [now] * servers
    for at in range(early):
        sent = now + at / 2 if servers > 1 else now + at
        end = max(sent, min(free)) + 1
        free[free.index(min(free))] = end
        running.append((sent if servers > 1 else max(now, sent - 0.5), end))
    moments = [(begin, 0, at) for at, (begin, _) in enumerate(running)]
    moments += [(end, 1, at) for at, (_, end) in enumerate(running)]
    calls: dict[int, Running] = {}
    for moment, ends, at in sorted(moments):
        if ends:
            pace.end(calls[at], moment, answered=True)
        else:
            calls[at] = pace.begin(20, moment)


@pytest.mark.parametrize("servers", [1, 2])
def test_a_call_behind_another_waits_where_there_is_one_server(servers: int) -> None:
    pace = Pace(GPU)
    on_servers(pace, servers, alone=6, early=6)
    assert pace.waits_behind == (servers == 1)


def test_until_one_alone_was_seen_a_call_waits_and_then_one_is_tried() -> None:
    pace = Pace(GPU)
    assert not pace.waits_behind
    now = call(pace, 0.0, 20, 4.0)
    now = call(pace, now, 20, 1.0)
    # The first says nothing, the second made the rate.
    assert pace.waits_behind
    now = call(pace, now + 5, 20, 1.0)
    assert not pace.waits_behind
    on_servers(pace, 1, alone=0, early=3)
    assert pace.waits_behind
    on_servers(pace, 1, alone=64, early=0)
    assert not pace.waits_behind


@pytest.mark.parametrize(("overtakings", "waits"), [(1, True), (6, False)])
def test_one_call_that_did_not_wait_is_no_second_server(overtakings: int, waits: bool) -> None:
    pace = Pace(GPU)
    on_servers(pace, 1, alone=6, early=6)
    for at in range(overtakings):
        now = 1000.0 + 10 * at
        first, second = pace.begin(20, now), pace.begin(20, now + 0.5)
        pace.end(first, now + 1, answered=True)
        pace.end(second, now + 1.5, answered=True)
    assert pace.waits_behind == waits


def test_a_call_behind_another_is_no_matter_where_tokens_are_the_most_of_it() -> None:
    pace = Pace(OwnCost(10))
    on_servers(pace, 1, alone=6, early=6)
    assert not pace.waits_behind


def test_calls_that_cost_the_same_are_waited_for_and_not_their_tokens() -> None:
    pace, now = Pace(GPU), 0.0
    for tokens in (18, 18, 18, 1152, 18, 1152, 1152, 18, 1152):
        now = call(pace, now, tokens, 0.1)
    assert pace.wait_s(1152, now, calls=1) == pytest.approx(0.1, rel=0.05)
    assert pace.wait_s(18, now, calls=1) == pytest.approx(0.1, rel=0.05)
    pace.begin(18, now)
    assert pace.wait_s(0, now + 0.04) == pytest.approx(0.06, abs=0.01)
    assert pace.most_tokens(0.01) > 1152


def test_an_error_is_no_work() -> None:
    pace = Pace()
    now = call(pace, call(pace, 0.0, 100, 1.0), 100, 1.0)
    for _ in range(50):
        running, now = pace.begin(100, now), now + 0.1
        pace.end(running, now, answered=False)
    assert pace.rate == pytest.approx(100)
    assert (pace.calls, pace.in_flight) == (0, 0)
