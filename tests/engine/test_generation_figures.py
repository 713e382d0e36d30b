"""What a language model's gauges say of the second before, with Triton's metrics and a clock that
are told."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.loaded_file import loaded_file
from transformer_serving.engine.backends.generation import counts
from transformer_serving.engine.backends.generation.counts import Counts

STEP_S = 0.02


class Metric:
    """Of a counter or a gauge; how often it was set or raised."""

    def __init__(self) -> None:
        self.value = 0.0
        self.messages = 0

    def set(self, value: float) -> None:
        self.value = value
        self.messages += 1

    def increment(self, value: float) -> None:
        self.set(self.value + value)


@dataclass
class Clock:
    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now


class Family:
    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self, *, name: str, description: str, kind: str) -> None:
        assert description
        assert (kind == self.COUNTER) == name.endswith("_total")

    def Metric(self, labels: dict[str, str]) -> Metric:
        assert labels == {"model": "stories", "version": "1"}
        return Metric()


@dataclass
class Model:
    """An engine that tells its counts after each step, and what is on the page."""

    figures: Any
    clock: Clock
    counts: Counts
    again_s: float | None = None

    def tell(self, running: int) -> None:
        self.counts.running = running
        self.counts.cache_use = running / 10
        self.again_s = self.figures.tell(self.counts)

    def work(self, running: int, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.tell(running)
            self.clock.now += STEP_S

    def rest(self, seconds: float) -> None:
        """Nothing runs: it is asked again when it said so."""
        self.tell(0)
        while self.again_s is not None and self.again_s <= seconds:
            self.clock.now += self.again_s
            seconds -= self.again_s
            self.tell(0)
        self.clock.now += seconds

    def page(self, field: str) -> float:
        value: float = self.figures._metrics[field].value
        return value


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    stub: Any = ModuleType("triton_python_backend_utils")
    stub.MetricFamily, stub.TritonModelException = Family, RuntimeError
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub)
    module: Any = loaded_file(Path(counts.__file__).with_name("figures.py"), "told_figures")
    clock = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.monotonic))
    return Model(module.Figures("stories", "1"), clock, Counts())


@pytest.mark.parametrize(
    ("busy_s", "idle_s"), [(0.1, 0.02), (0.5, 0.05), (0.96, 0.04), (1.5, 0.05), (3, 0.05)]
)
def test_moments_of_rest_hide_no_work(model: Model, busy_s: float, idle_s: float) -> None:
    """As between the answers to one caller: whenever the page is asked, eight run."""
    model.work(8, STEP_S)
    for _ in range(50):
        model.work(8, busy_s)
        assert (model.page("running"), model.page("cache_use")) == (8, 0.8)
        model.rest(idle_s)
        assert (model.page("running"), model.page("cache_use")) == (8, 0.8)


def test_what_came_within_the_second_is_in_it(model: Model) -> None:
    model.tell(1)
    model.work(5, 0.5)
    model.work(2, 0.4)
    assert model.page("running") == 1
    model.work(2, 0.2)
    assert model.page("running") == 5
    model.work(2, 1.0)
    assert model.page("running") == 2


def test_an_engine_at_rest_comes_to_say_0_and_then_nothing(model: Model) -> None:
    model.work(8, 0.5)
    model.rest(2.0)
    assert model.again_s is None
    assert {model.page(field) for field in ("running", "waiting", "cache_use")} == {0}


def test_counters_are_told_when_nothing_runs(model: Model) -> None:
    """As a process that ends has no second in which to come again."""
    model.tell(1)
    model.counts.finished = 3
    model.tell(1)
    assert model.page("finished") == 0
    model.tell(0)
    assert model.page("finished") == 3


def test_gauges_are_messages_once_a_second_however_often_it_rests(model: Model) -> None:
    for _ in range(100):
        model.work(1, STEP_S)
        model.rest(STEP_S)
    # One as it is made, and one at the beginning of each of four seconds.
    assert model.figures._metrics["running"].messages <= 1 + 5


def test_none_runs_once_it_is_closed(model: Model) -> None:
    model.work(8, 0.5)
    model.figures.close()
    assert model.page("running") == 0
