"""The budgets, one row each, and what the runs say about them. The sure side of a bound counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.runs.results import Results
from transformer_serving.desk.bench import bounds
from transformer_serving.desk.bench.bounds import Spread

RECIPES = ("queue", "gunicorn")
# Below this a bound is too unsure to call a budget met.
LEAST_ROUNDS = 7
# The kinds of the runs that are judged.
BENCH, STARTS, ALL = "bench", "budgets", "bench-all"
# s before each request of a cold start: one after a pause takes longer.
PAUSE_S = 0.2
_MB_A_MIB = 2**20 / 1e6

Figure = Callable[[Results], Spread | None]


@dataclass(frozen=True)
class Measured:
    """A figure of some peers' rows, each with its load."""

    take: Figure
    rows: tuple[tuple[str, str], ...]

    def __call__(self, results: Results) -> Spread | None:
        return self.take(results)

    def short(self, results: Results) -> bool:
        """Whether the rounds of one of the rows were too short to count on."""
        return any(results.short(peer, load) for peer, load in self.rows)


@dataclass(frozen=True)
class Budget:
    """`wanted` is a floor where `at_least`, else a ceiling; `figure` takes it from a run of `kind`.

    `rounds` is how many a verdict needs.
    """

    text: str
    unit: str
    wanted: float
    at_least: bool
    figure: Figure
    kind: str = BENCH
    rounds: int = LEAST_ROUNDS

    def met(self, found: Spread) -> bool:
        return found.lower >= self.wanted if self.at_least else found.upper <= self.wanted

    def bound(self, found: Spread) -> float:
        return found.lower if self.at_least else found.upper


def _times(over: str, under: str, load: str) -> Figure:
    rows = ((over, load), (under, load))
    return Measured(lambda results: results.ratio(over, under, load), rows)


def _times_best_recipe() -> Figure:
    """Against the stronger of the recipes: the one with the smallest ratio."""

    def take(results: Results) -> Spread | None:
        found = [results.ratio("gateway", name, "seed") for name in RECIPES]
        there = [ratio for ratio in found if ratio is not None]
        return min(there, key=lambda ratio: ratio.median) if there else None

    return Measured(take, tuple((name, "seed") for name in ("gateway", *RECIPES)))


def _extra(peer: str) -> Figure:
    return lambda results: results.extra_ms(peer, "raw", "single")


def _worst_class(peer: str) -> Figure:
    """The length class whose 99th percentile grows most under load."""

    def figure(results: Results) -> Spread | None:
        found = [bounds.spread(row["times"]) for row in results.classes(peer).values()]
        return max(found, key=lambda times: times.upper, default=None)

    return figure


def _spread(values: Iterable[float]) -> Spread | None:
    there = list(values)
    return bounds.spread(there) if there else None


def _part(name: str, values: Callable[[Any], Iterable[float]]) -> Figure:
    """From what one part of a run stored; None where it was not measured."""

    def figure(results: Results) -> Spread | None:
        found = results.values.get(name)
        return _spread(values(found)) if found else None

    return figure


def _start_beyond_empty(way: str) -> Figure:
    def values(found: Any) -> Iterable[float]:
        pairs = zip(found[f"{way}, ours"], found[f"{way}, empty"], strict=True)
        return [ours["first_answer_s"] - empty["first_answer_s"] for ours, empty in pairs]

    return _part("cold_start", values)


def _first_answer(way: str) -> Figure:
    return _part(
        "cold_start", lambda found: [row["first_ms"] / row["later_ms"] for row in found[way]]
    )


def _memory(found: Any) -> Iterable[float]:
    return [max(found["warm_mib"], found["end_mib"]) * _MB_A_MIB]


def _slope(found: Any) -> Iterable[float]:
    return [] if found["slope_mib_a_minute"] is None else [found["slope_mib_a_minute"]]


def _idle(part: str, key: str) -> Figure:
    def values(found: Any) -> Iterable[float]:
        used = found.get(part, {})
        return [used[key]] if key in used else []

    return _part("demo_stack", values)


BUDGETS = (
    Budget("seed load, gateway, over clearml-serving's example as it comes (ONNX Runtime fp32)",
           "times", 2.5, True, _times("gateway", "stock-ort", "seed")),
    Budget("seed load, gateway, over the better of the two recipes",
           "times", 3.3, True, _times_best_recipe()),
    Budget("seed load, unmodified app, of the engine alone",
           "times", 0.6, True, _times("app", "raw", "seed")),
    Budget("seed load, gateway, of the engine alone",
           "times", 0.75, True, _times("gateway", "raw", "seed")),
    Budget("null engine, unmodified app, of the empty Preprocess",
           "times", 0.9, True, _times("null-app", "empty", "seed")),
    Budget("null engine, gateway, over the empty Preprocess in the unmodified app",
           "times", 1.8, True, _times("null-gateway", "empty", "seed")),
    Budget("32 texts a request, unmodified app, of the engine alone",
           "times", 0.9, True, _times("app", "raw", "batch")),
    Budget("32 texts a request, gateway, of the engine alone",
           "times", 0.9, True, _times("gateway", "raw", "batch")),
    Budget("512 texts a request, gateway, of the engine alone",
           "times", 0.9, True, _times("gateway", "raw", "big"), ALL),
    Budget("seed load, gateway, over the tokenizer ensemble in Triton",
           "times", 1.0, True, _times("gateway", "ensemble", "seed"), ALL),
    Budget("one at a time, gateway, over the tokenizer ensemble in Triton",
           "times", 1.0, True, _times("gateway", "ensemble", "single"), ALL),
    Budget("32 texts a request, gateway, over the tokenizer ensemble in Triton",
           "times", 1.0, True, _times("gateway", "ensemble", "batch"), ALL),
    Budget("null engine, gateway, one at a time",
           "ms", 0.6, False, lambda results: results.spread("null-gateway", "single", "p50")),
    Budget("one at a time, unmodified app, beyond the engine alone",
           "ms", 1.5, False, _extra("app")),
    Budget("one at a time, gateway, beyond the engine alone",
           "ms", 1.2, False, _extra("gateway")),
    Budget("mixed lengths at 70 %, unmodified app, p99 of the worst class over its own idle p99",
           "times", 2.0, False, _worst_class("app")),
    Budget("mixed lengths at 70 %, gateway, p99 of the worst class over its own idle p99",
           "times", 2.0, False, _worst_class("gateway")),
    Budget("cold start, unmodified app, first answer later than with an empty Preprocess",
           "s", 0.5, False, _start_beyond_empty("app"), STARTS),
    Budget("cold start, gateway, first answer later than with an empty Preprocess",
           "s", 0.5, False, _start_beyond_empty("gateway"), STARTS),
    Budget("first request behind the gateway over the next five",
           "times", 1.2, False, _first_answer("gateway, ours"), STARTS),
    Budget("memory of a worker with a WordPiece tokenizer, gateway",
           "MB", 250, False, _part("worker_memory", _memory), STARTS, 1),
    Budget("growth of that worker under load",
           "MiB a minute", 1, False, _part("worker_memory", _slope), STARTS, 1),
    Budget("the demo's stack, nobody asks: the gateway",
           "% of a core", 1, False, _idle("inference", "core_percent"), STARTS, 1),
    Budget("the demo's stack, nobody asks: the controller",
           "% of a core", 1, False, _idle("controller", "core_percent"), STARTS, 1),
    Budget("the demo's stack: memory of its worker",
           "MB", 200, False, _idle("inference", "largest_mb"), STARTS, 1),
    Budget("the demo's stack: memory of its worker after a load, of that before",
           "times", 1.2, False, _idle("inference", "after_load"), STARTS, 1),
    Budget("embedded stack, `up` again",
           "s", 15, False, _part("restart", list), STARTS, 3),
    Budget("embedded stack, `make up` in a fresh clone",
           "s", 180, False, _part("fresh_clone", list), STARTS, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """A budget beside a run's figure; None where the run did not measure it. `short`: of rounds
    too short to count on."""

    budget: Budget
    found: Spread | None
    short: bool = False

    @property
    def word(self) -> str:
        if self.found is None:
            return "not measured"
        if self.found.rounds < self.budget.rounds:
            return f"needs {self.budget.rounds} rounds"
        short = ", of short rounds" if self.short else ""
        if self.budget.met(self.found):
            return f"met{short}"
        return f"missed by {abs(self.budget.bound(self.found) - self.budget.wanted):.2f}{short}"


def judge(runs: Mapping[str, Results]) -> list[Verdict]:
    """Every budget by the run of its kind, as far as there is one."""
    return [_verdict(budget, runs.get(budget.kind)) for budget in BUDGETS]


def _verdict(budget: Budget, run: Results | None) -> Verdict:
    if run is None:
        return Verdict(budget, None)
    short = isinstance(budget.figure, Measured) and budget.figure.short(run)
    return Verdict(budget, budget.figure(run), short)
