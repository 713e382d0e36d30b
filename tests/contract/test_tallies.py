"""What was added up in memory reaches Prometheus once, whole, and by the buckets it belongs to."""

from __future__ import annotations

import asyncio

import prometheus_client as prometheus
import pytest
from hypothesis import given, strategies as st

from preprocess.stats import EndpointFigures, counter
from transformer_serving.contract.worker.deferred import Deferred, do_all_now
from transformer_serving.contract.worker.tallies import CounterTally, HistogramTally

BOUNDS = (0.1, 1.0, 10.0)


def rows_of(registry: prometheus.CollectorRegistry) -> list[prometheus.samples.Sample]:
    """All but when it was made."""
    rows = [row for metric in registry.collect() for row in metric.samples]
    return [row for row in rows if not row.name.endswith("_created")]


@given(st.lists(st.floats(0, 20), max_size=40), st.integers(1, 5))
def test_a_histogram_is_as_if_each_value_had_been_observed(values: list[float], every: int) -> None:
    one, other = prometheus.CollectorRegistry(), prometheus.CollectorRegistry()
    observed = prometheus.Histogram("h", "h", buckets=BOUNDS, registry=one)
    told = prometheus.Histogram("h", "h", buckets=BOUNDS, registry=other)
    tally = HistogramTally(BOUNDS)
    for number, value in enumerate(values):
        observed.observe(value)
        tally.observe(value)
        if number % every == 0:
            tally.tell(told)
    tally.tell(told)
    tally.tell(told)
    wanted = {(row.name, *row.labels.values()): row.value for row in rows_of(one)}
    assert {(row.name, *row.labels.values()): row.value for row in rows_of(other)} == pytest.approx(
        wanted
    )


def test_a_counter_is_told_what_came_since() -> None:
    registry = prometheus.CollectorRegistry()
    tally = CounterTally(prometheus.Counter("c", "c", registry=registry))
    for value in (2, 3, 0):
        tally.value += value
        tally.tell()
    assert registry.get_sample_value("c_total") == 5


async def test_who_asks_for_everything_need_not_wait() -> None:
    figures = EndpointFigures("asked at once")
    texts = counter("texts", "Texts answered.").labels("asked at once")
    before = texts._value.get()
    figures.request(200, 3, 9, {})
    assert texts._value.get() == before
    do_all_now()
    assert texts._value.get() == before + 3


def test_work_that_is_done_is_not_done_again() -> None:
    done: list[int] = []

    async def twice() -> None:
        deferred = Deferred(lambda: done.append(1), 60.0)
        deferred.soon()
        do_all_now()
        do_all_now()

    asyncio.run(twice())
    assert done == [1]
