"""The budgets, one row each, and what a run says about them. The sure side of a bound counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.bounds import Spread
from benchmarks.results import Results

RECIPES = ("queue", "gunicorn")


@dataclass(frozen=True)
class Budget:
    """`wanted` is a floor where `at_least`, else a ceiling; `figure` takes it from a run."""

    text: str
    unit: str
    wanted: float
    at_least: bool
    figure: Callable[[Results], Spread | None]

    def met(self, found: Spread) -> bool:
        return found.lower >= self.wanted if self.at_least else found.upper <= self.wanted

    def bound(self, found: Spread) -> float:
        return found.lower if self.at_least else found.upper


def _times(over: str, under: str, load: str) -> Callable[[Results], Spread | None]:
    return lambda results: results.ratio(over, under, load)


def _times_best(over: str, under: Sequence[str], load: str) -> Callable[[Results], Spread | None]:
    """Against the strongest of several: the one with the smallest ratio."""

    def figure(results: Results) -> Spread | None:
        found = [results.ratio(over, name, load) for name in under]
        there = [ratio for ratio in found if ratio is not None]
        return min(there, key=lambda ratio: ratio.median) if there else None

    return figure


def _extra(peer: str) -> Callable[[Results], Spread | None]:
    return lambda results: results.extra_ms(peer, "raw", "single")


def _worst_class(peer: str) -> Callable[[Results], Spread | None]:
    """The class whose 99th percentile grows most under load; pooled over rounds, so no spread."""

    def figure(results: Results) -> Spread | None:
        classes = results.classes(peer).values()
        if not classes:
            return None
        worst = max(row["loaded_p99"] / row["idle_p99"] for row in classes)
        return Spread(worst, worst, worst, results.values["plan"]["rounds"])

    return figure


def _memory(server: str) -> Callable[[Results], Spread | None]:
    def figure(results: Results) -> Spread | None:
        found = results.memory(server)
        return None if found is None else Spread(found, found, found, 1)

    return figure


BUDGETS = (
    Budget("seed load, gateway, over clearml-serving's example as it comes (ONNX Runtime fp32)",
           "times", 2.5, True, _times("gateway", "stock-ort", "seed")),
    Budget("seed load, gateway, over the better of the two recipes",
           "times", 3.3, True, _times_best("gateway", RECIPES, "seed")),
    Budget("seed load, unmodified app, of the engine alone",
           "times", 0.6, True, _times("app", "raw", "seed")),
    Budget("seed load, gateway, of the engine alone",
           "times", 0.75, True, _times("gateway", "raw", "seed")),
    Budget("null engine, unmodified app, of the empty Preprocess",
           "times", 0.9, True, _times("null-app", "empty", "seed")),
    Budget("null engine, gateway, over the empty Preprocess in the unmodified app",
           "times", 1.8, True, _times("null-gateway", "empty", "seed")),
    Budget("32 texts a request, gateway, of the engine alone",
           "times", 0.9, True, _times("gateway", "raw", "batch")),
    Budget("one at a time, unmodified app, beyond the engine alone",
           "ms", 1.5, False, _extra("app")),
    Budget("one at a time, gateway, beyond the engine alone",
           "ms", 1.2, False, _extra("gateway")),
    Budget("mixed lengths at 70 %, gateway, p99 of the worst class over its own on an idle server",
           "times", 2.0, False, _worst_class("gateway")),
    Budget("memory of a worker with a WordPiece tokenizer, gateway",
           "MiB", 250, False, _memory("worker")),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """A budget beside a run's figure; None where the run did not measure it."""

    budget: Budget
    found: Spread | None

    @property
    def word(self) -> str:
        if self.found is None:
            return "not measured"
        return "met" if self.budget.met(self.found) else "missed"


def judge(results: Results) -> list[Verdict]:
    return [Verdict(budget, budget.figure(results)) for budget in BUDGETS]
