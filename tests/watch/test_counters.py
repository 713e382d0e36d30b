"""Rates from pages of figures: of a server that counts on, begins again, or is away."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from transformer_serving.desk.watch.counters import (
    Page,
    Rise,
    Series,
    Window,
    read_page,
)

REQUESTS, CALLS = Series("requests_total", ()), Series("calls_total", ())
counts = st.integers(0, 1000)


def page(at: float, **counters: float) -> Page:
    return Page(at, {Series(name, ()): value for name, value in counters.items()}, {})


@given(st.lists(st.tuples(counts, counts), min_size=2, max_size=20))
def test_a_server_that_counts_on_loses_nothing(steps: list[tuple[int, int]]) -> None:
    window = Window(1e9)
    requests = calls = 0
    for at, (more, others) in enumerate(steps):
        requests, calls = requests + more, calls + others
        window.add(page(float(at), requests_total=requests, calls_total=calls))
    risen = window.all()
    assert risen.seconds == len(steps) - 1
    assert dict(risen.of("requests_total"))[REQUESTS] == sum(more for more, _ in steps[1:])
    assert dict(risen.of("calls_total"))[CALLS] == sum(others for _, others in steps[1:])


@given(
    st.lists(st.tuples(counts, counts, st.booleans()), min_size=2, max_size=20), st.floats(0.5, 9)
)
def test_restarts_never_make_a_rate_negative_nor_count_what_was_not(
    steps: list[tuple[int, int, bool]], span: float
) -> None:
    """What came between the last look and the restart is lost to it, and no more."""
    window = Window(span)
    before: tuple[int, int] | None = None
    requests = calls = 0
    for at, (more, others, restarts) in enumerate(steps):
        if restarts:
            requests = calls = 0
        requests, calls = requests + more, calls + others
        window.add(page(float(at), requests_total=requests, calls_total=calls))
        last = window.last()
        rose = dict(last.of("requests_total")).get(REQUESTS, 0.0)
        assert 0 <= rose <= more
        if before is not None and (requests < before[0] or calls < before[1]):
            # That it began again is told by either, and holds for both.
            assert (rose, dict(last.of("calls_total"))[CALLS]) == (more, others)
        elif before is not None and not restarts:
            assert rose == more
        before = requests, calls
        assert window.all().rate("requests_total") >= 0


@given(st.lists(st.floats(0.1, 5), min_size=1, max_size=40), st.floats(0.5, 20))
def test_the_window_covers_its_span_and_no_step_too_many(gaps: list[float], span: float) -> None:
    window, at = Window(span), 0.0
    window.add(page(at))
    for gap in gaps:
        at += gap
        window.add(page(at))
        seconds = window.all().seconds
        assert seconds < span + max(gaps) + 1e-9
        assert seconds >= min(at, span) - 1e-9


def test_a_series_that_comes_began_at_zero_and_one_that_goes_is_no_restart() -> None:
    ends = Series("requests_total", (("endpoint", "new"),))
    rise = Rise({REQUESTS: 5.0})
    assert rise.next({REQUESTS: 7.0, ends: 3.0}) == {REQUESTS: 2.0, ends: 3.0}
    assert rise.next({REQUESTS: 8.0}) == {REQUESTS: 1.0}
    # It comes back with what it had counted.
    assert rise.next({REQUESTS: 8.0, ends: 4.0}) == {REQUESTS: 0.0, ends: 1.0}
    assert rise.next({REQUESTS: 9.0}) == {REQUESTS: 1.0}
    # Of the gateway before, what is gone is forgotten.
    assert rise.next({REQUESTS: 2.0}) == {REQUESTS: 2.0}
    assert rise.next({REQUESTS: 2.0, ends: 1.0}) == {REQUESTS: 0.0, ends: 1.0}


def test_an_endpoint_that_comes_back_from_zero_began_again_alone() -> None:
    """After an hour without it the gateway has forgotten it."""
    mine, bucket = (
        Series(name, (("endpoint", "back"), *labels))
        for name, labels in (("times_count", ()), ("times_bucket", (("le", "1"),)))
    )
    rise = Rise({REQUESTS: 1000.0, mine: 500.0, bucket: 2.0})
    assert rise.next({REQUESTS: 1010.0}, 10.0) == {REQUESTS: 10.0}
    back = {REQUESTS: 1020.0, mine: 3.0, bucket: 3.0}
    assert rise.next(back, 20.0) == {REQUESTS: 10.0, mine: 3.0, bucket: 3.0}
    # One that counts on, but for those that went an hour ago.
    assert rise.next({REQUESTS: 1030.0}, 30.0) == {REQUESTS: 10.0}
    assert rise.next({REQUESTS: 1040.0}, 3630.0) == {REQUESTS: 10.0}
    assert rise.next({REQUESTS: 1050.0, mine: 9.0}, 3640.0) == {REQUESTS: 10.0, mine: 9.0}
    # What was there before and falls is the whole gateway's start.
    assert rise.next({REQUESTS: 5.0, mine: 10.0}, 3650.0) == {REQUESTS: 5.0, mine: 10.0}


def test_a_sum_of_seconds_that_is_a_trifle_lower_is_no_restart() -> None:
    seconds = Series("stage_seconds_sum", ())
    before, after = {REQUESTS: 5.0, seconds: 1.25}, {REQUESTS: 6.0, seconds: 1.25 - 1e-15}
    assert Rise(before).next(after)[REQUESTS] == 1.0


def test_the_first_page_says_nothing_yet() -> None:
    window = Window(15)
    window.add(page(1.0, requests_total=1000))
    assert window.all().seconds == 0
    assert window.all().rate("requests_total") == 0
    assert window.last().buckets("request_duration_seconds") == {}


def test_nobody_answers_for_longer_than_the_span() -> None:
    window = Window(5)
    window.add(page(0.0, requests_total=10))
    window.add(page(2.0, requests_total=12))
    window.add(page(102.0, requests_total=212))
    assert window.all().seconds == 100
    assert window.all().rate("requests_total") == pytest.approx(2.0)


def test_a_page_of_prometheus_own_client() -> None:
    registry = CollectorRegistry()
    requests = Counter(
        "transformer_serving_requests", "Answers.", ("endpoint", "status"), registry=registry
    )
    times = Histogram(
        "transformer_serving_request_duration_seconds", "Times.", ("endpoint",), registry=registry,
        buckets=(0.1, 1.0),
    )  # fmt: skip
    Counter("others", "Of another program.", registry=registry).inc()
    first = read_page(generate_latest(registry).decode(), 1.0)
    requests.labels("a b", "200").inc(3)
    requests.labels('"quoted"', "503").inc()
    for seconds in (0.05, 0.5, 5):
        times.labels("a b").observe(seconds)
    window = Window(15)
    window.add(first)
    window.add(read_page(generate_latest(registry).decode(), 3.0))
    risen = window.all()
    assert risen.rate("requests_total", endpoint="a b") == 1.5
    assert risen.rate("requests_total", endpoint='"quoted"', status="503") == 0.5
    assert risen.rate("requests_total") == 2.0
    assert risen.buckets("request_duration_seconds", endpoint="a b") == {
        0.1: 1, 1.0: 2, float("inf"): 3
    }  # fmt: skip
    assert not list(risen.of("others_total"))


def test_gauges_are_read_by_name_and_labels_and_do_not_count() -> None:
    registry = CollectorRegistry()
    waiting = Gauge("transformer_serving_waiting", "Now.", ("endpoint",), registry=registry)
    Gauge("transformer_serving_streams", "Now.", registry=registry).set(100)
    for endpoint, value in (("a", 3), ("b", 4)):
        waiting.labels(endpoint).set(value)
    found = read_page(generate_latest(registry).decode(), 1.0)
    assert found.counters == {}
    assert (found.gauge("waiting"), found.gauge("waiting", endpoint="b")) == (7, 4)
    assert found.gauge("waiting", endpoint="c") is found.gauge("others") is None
    a = Series("waiting", (("endpoint", "a"),))
    assert list(found.select("waiting", endpoint="a")) == [(a, 3.0)]


@pytest.mark.parametrize("text", ["<html>\n", "transformer_serving_x{a= 1\n"])
def test_what_is_no_page_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_page(text, 0.0)
