"""docs/growth.md's tables: what each growth costs, the model, and what 100,000 a second need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.report import growth_model as models, growth_needs
from benchmarks.report.budget_tables import COMMANDS
from benchmarks.report.budgets import ALL, BENCH
from benchmarks.report.growth_model import Model
from benchmarks.report.growth_needs import CpuEngine
from benchmarks.report.growth_points import (
    CHECKED,
    FITTED,
    NAMES,
    PACED,
    PARTS,
    SERVING,
    Place,
    Point,
    of_series,
    read,
)
from benchmarks.report.markdown import table
from benchmarks.report.tables import OURS
from benchmarks.runs.results import Results
from transformer_serving.desk.bench.bounds import Spread

GROWTH = "growth"
_TITLES = {
    "clients": ("Clients", "one endpoint, one worker, one Triton"),
    "endpoints": ("Endpoints", "128 clients in all, one worker with 50 endpoints, one Triton"),
    "workers": ("Workers", "128 clients in all, one endpoint, one Triton"),
    "tritons": ("Tritons", "128 clients, one endpoint, one worker"),
}
_PICTURES = "../benchmarks/results/plots"


def text(runs: Mapping[str, Results]) -> str:
    """The generated part; `runs` has the study's run, and those in which an engine computed."""
    results = runs.get(GROWTH)
    found = results.values.get("growth") if results else None
    if results is None or not found:
        return results.provenance() if results else ""
    points = read(found["points"])
    model = models.fitted(of_series(points, FITTED), of_series(points, PACED), found["most_texts"])
    parts = [_about(results, found, points)]
    for name, (title, about) in _TITLES.items():
        rows = of_series(points, [name])
        parts.append(f"### {title}\n\n{_sentence(about)}\n\n{_table(name, rows)}")
    parts += [
        f"![Processor time a request by each quantity]({_PICTURES}/curve-growth.png)",
        _idle(found),
        _model(model, points),
        f"![The model beside what was measured]({_PICTURES}/curve-growth-model.png)",
        growth_needs.text(model, found, _engine(runs, results)),
    ]
    return "\n\n".join(parts)


def _about(results: Results, found: Mapping[str, Any], points: Mapping[Place, Point]) -> str:
    loads = found["loads"]
    refused = sum(row["not_200"] for point in points.values() for row in point.rounds)
    return (
        f"{results.provenance()} Load {min(loads):g} to {max(loads):g} when the rounds began, this "
        f"measurement's own included. The engine sleeps as one of {found['texts_a_second']:,} "
        f"texts a second does. {refused:.0f} answers were not 200."
    )


def _sentence(about: str) -> str:
    return (
        f"{about[0].upper()}{about[1:]}; microseconds of processor a request, bounds in brackets."
    )


def _table(name: str, points: Sequence[Point]) -> str:
    head = (NAMES.get(name, name), *PARTS.values(), "texts a call", "requests/s", "p50, ms")
    rows = [
        (
            str(getattr(point.place, name)),
            *(_bounds(point.figure(f"{part}_us")) for part in PARTS),
            f"{point.figure('texts_a_call').median:.1f}",
            f"{point.figure('per_s').median:,.0f}",
            f"{point.figure('p50_ms').median:.0f}",
        )
        for point in points
    ]
    return table(head, rows)


def _bounds(found: Spread) -> str:
    return f"{found.median:.0f} ({found.lower:.0f} to {found.upper:.0f})"


def _idle(found: Mapping[str, Any]) -> str:
    memory = {
        (row["workers"], row["served"], row["tritons"]): row["worker_mb"] for row in found["memory"]
    }
    rows = [
        (
            str(row["workers"]), str(row["served"]), str(row["tritons"]),
            *(f"{row[f'{part}_ms']:.1f}" for part in SERVING),
            f"{memory[row['workers'], row['served'], row['tritons']]:.0f}",
        )
        for row in found["idle"]
    ]  # fmt: skip
    head = (
        "workers", "endpoints", "Tritons", *(f"{PARTS[part]}, ms a second" for part in SERVING),
        "a worker's memory, MB",
    )  # fmt: skip
    about = (
        "Processor time while nobody asks, which is in the figures above too, and what a worker "
        "holds after all rounds (resident):"
    )
    return f"### Nobody asks\n\n{about}\n\n{table(head, rows)}"


def _model(model: Model, points: Mapping[Place, Point]) -> str:
    rows = [
        (
            PARTS[part],
            f"{cost.fixed:.0f}",
            f"{cost.call:.0f}",
            f"{cost.beside:.0f}",
            *_sizes(model, points, [part]),
        )
        for part, cost in model.costs.items()
    ]
    rows.append(("together", *_summed(model), *_sizes(model, points, SERVING)))
    head = (
        "part", "fixed, µs a request", "µs a call", "µs for each further worker",
        "error where fitted, median", "at most", "error where only checked, median", "at most",
    )  # fmt: skip
    about = (
        "`crowd = clients / (endpoints × workers)`, "
        f"`texts = 1 + {model.joining:.3f} × (crowd - 1)`, from 1 to {model.most_texts}, and "
        "`µs = fixed + call / texts + further × (workers - 1)`. More Tritons change neither. "
        "Fitted to the four tables above, by least squares of relative errors; checked at places "
        "that the fit has not seen, where more than one quantity is changed:"
    )
    return (
        f"### The model\n\n{about}\n\n{table(head, rows)}\n\nOpen "
        "loops at 65 % of what the closed one got; their clients are the requests under way at a "
        "time, answers a second times mean latency. From these three come "
        f"`texts = 1 + {model.paced_joining:.3f} × (crowd - 1)` of such loops, and that a request "
        f"costs {model.paced:.2f} times what the model says. Below them the places that were only "
        f"checked:\n\n{_checked(model, of_series(points, (*PACED, *CHECKED)))}"
    )


def _sizes(model: Model, points: Mapping[Place, Point], parts: Sequence[str]) -> list[str]:
    cells = []
    for names in (FITTED, CHECKED):
        shares = models.errors(model, of_series(points, names), parts)
        cells += [f"{share:.0%}" for share in models.size(shares)]
    return cells


def _summed(model: Model) -> list[str]:
    rows = [(cost.fixed, cost.call, cost.beside) for cost in model.costs.values()]
    return [f"{sum(column):.0f}" for column in zip(*rows, strict=True)]


def _checked(model: Model, points: Sequence[Point]) -> str:
    rows = []
    for point in points:
        place, at = point.place, models.crowd_of(point)
        (error,) = models.errors(model, [point])
        rows.append(
            (
                "open" if place.busy else "closed", f"{point.in_flight:.0f}", str(place.endpoints),
                str(place.workers), str(place.tritons), f"{at:.1f}",
                f"{point.figure('texts_a_call').median:.1f}",
                f"{model.texts(at, is_paced=bool(place.busy)):.1f}",
                f"{point.us(['worker']):.0f}", f"{model.us_at(point, ['worker']):.0f}",
                f"{point.us(SERVING):.0f}", f"{model.us_at(point):.0f}", f"{error:+z.0%}",
            )
        )  # fmt: skip
    head = (
        "loop", "clients", "endpoints", "workers", "Tritons", "crowd", "texts a call", "model",
        "gateway, µs", "model", "together, µs", "model", "",
    )  # fmt: skip
    return table(head, rows)


def _engine(runs: Mapping[str, Results], results: Results) -> CpuEngine | None:
    """A text's on the CPU, of a run on the study's own processor where there is one."""
    own = results.processor()
    of_runs = [_of_run(runs[kind], kind) for kind in (BENCH, ALL) if kind in runs]
    engines = [engine for engine in of_runs if engine]
    return max(engines, key=lambda engine: engine.processor == own, default=None)


def _of_run(run: Results, kind: str) -> CpuEngine | None:
    found = run.spread(OURS, "seed", "engine_us")
    if found is None:
        return None
    title = run.rows[OURS].engine
    date = run.values["date"] + (", in short rounds" if run.short(OURS, "seed") else "")
    return CpuEngine(found.median, title, COMMANDS[kind], date, run.processor())
