"""Answers are added up in memory, and Prometheus is told all of them a moment later."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import prometheus_client as prometheus
import pytest

from transformer_serving.contract.errors import KINDS
from transformer_serving.contract.worker import durations as module
from transformer_serving.contract.worker.deferred import WITHIN_S, Deferred
from transformer_serving.contract.worker.durations import (
    BOUNDS,
    NAME,
    OK,
    OTHER,
    Durations,
    code_of,
)

Registry = prometheus.CollectorRegistry


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A process that has no histogram yet."""
    made = Registry()
    kept: dict[str, Any] = {}

    def process_wide(name: str, make: Any) -> Any:
        if name not in kept:
            kept[name] = make()
        return kept[name]

    monkeypatch.setattr(module, "process_wide", process_wide)
    return made


def library(registry: Registry) -> Any:
    """prometheus_client, with another registry."""

    histogram = partial(prometheus.Histogram, registry=registry)
    return SimpleNamespace(Histogram=histogram)


def value(registry: Registry, part: str, **labels: str) -> float | None:
    row = {"endpoint": "texts", "status": "200", "code": OK, **labels}
    return registry.get_sample_value(f"{NAME}_{part}", row)


def test_every_answer_is_in_its_bucket(registry: Registry) -> None:
    durations = Durations(library(registry))
    for seconds in (0.0004, 0.001, 0.0011, 0.7, 59.0, 61.0):
        durations.took("texts", OK, 200, seconds)
    durations.took("texts", "overloaded", 503, 0.002)
    durations.tell()
    durations.tell()
    assert value(registry, "count") == 6
    assert value(registry, "sum") == pytest.approx(120.7025)
    within = {le: value(registry, "bucket", le=le) for le in ("0.001", "0.0025", "1.0", "60.0")}
    assert within == {"0.001": 2, "0.0025": 3, "1.0": 4, "60.0": 5}
    assert value(registry, "count", status="503", code="overloaded") == 1
    durations.took("texts", OK, 200, 0.3)
    durations.tell()
    assert value(registry, "count") == 7


def test_two_versions_of_the_code_have_one_histogram(registry: Registry) -> None:
    old, new = Durations(library(registry)), Durations(library(registry))
    for durations in (old, new):
        durations.took("texts", OK, 200, 0.1)
        durations.tell()
    assert value(registry, "count") == 2


async def test_it_is_told_in_time_without_being_asked(registry: Registry) -> None:
    durations = Durations(library(registry))
    for _ in range(3):
        durations.took("texts", OK, 200, 0.1)
    assert value(registry, "count") is None
    await asyncio.sleep(WITHIN_S + 0.1)
    assert value(registry, "count") == 3


def test_without_a_loop_it_is_told_at_once(registry: Registry) -> None:
    Durations(library(registry)).took("texts", OK, 200, 0.1)
    assert value(registry, "count") == 1


def test_without_the_library_nothing_is_kept() -> None:
    durations = Durations(None)
    durations.took("texts", OK, 200, 0.1)
    assert not durations._tallies


def test_what_cannot_be_written_is_told_later(registry: Registry) -> None:
    """A cleaner of temporary files took the folder, and somebody makes it again."""
    faults = [OSError("gone")]

    class Histogram(prometheus.Histogram):
        def labels(self, *values: Any, **named: Any) -> Any:
            if faults:
                raise faults.pop()
            return super().labels(*values, **named)

    durations = Durations(SimpleNamespace(Histogram=partial(Histogram, registry=registry)))
    durations.took("texts", OK, 200, 0.1)
    assert value(registry, "count") is None
    durations.tell()
    assert value(registry, "count") == 1


def test_a_loop_that_ended_early_holds_nothing_up() -> None:
    done: list[int] = []
    deferred = Deferred(lambda: done.append(1))

    async def once(seconds: float) -> None:
        deferred.soon()
        deferred.soon()
        await asyncio.sleep(seconds)

    asyncio.run(once(0))
    assert not done
    asyncio.run(once(WITHIN_S + 0.1))
    assert done == [1]


def test_codes_are_those_of_our_table_or_two_more() -> None:
    assert {code_of(code, 200) for code in KINDS} == set(KINDS)
    for named in (None, "made-up", 7, ""):
        assert (code_of(named, 204), code_of(named, 418)) == (OK, OTHER)


def test_the_bounds_reach_from_a_millisecond_to_a_minute() -> None:
    assert (BOUNDS[0], BOUNDS[-1]) == (0.001, 60)
    assert list(BOUNDS) == sorted(set(BOUNDS))
