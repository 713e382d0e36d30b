"""The table and the picture of autoscaling.py beside it, for docs/kubernetes.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.report import plots
from benchmarks.studies.autoscaling import ENGINES, JUMP_AT_S, JUMP_LASTS_S, Course
from scripts.generated_part import write_part

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"
PART = "autoscaling"
# Around the jump, in hours from midnight.
_FROM_H, _TO_H = JUMP_AT_S / 3600 - 0.1, (JUMP_AT_S + JUMP_LASTS_S) / 3600 + 0.9
_SHOWN = {"what waits": "#e2a03f", "what is answered": "#b0b4ba", "both": "#1f6fb2"}
_EVERY_S = 5

Found = Mapping[tuple[str, str], Course]


def write(found: Found) -> None:
    write_part(PART, table(found), PAGE)


def table(found: Found) -> str:
    about = "; ".join(
        f"{engine.title}: {engine.tokens_per_second:,.0f} tokens a second, {engine.start_s} s "
        "until a pod serves"
        for engine in ENGINES
    )
    rows = [
        f"{about}.",
        "",
        "| engine | scaled on | refused | p50, ms | p99, ms | most pods | hours of pods |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for (engine, scaler), course in found.items():
        rows.append(
            f"| {engine} | {scaler} | {course.refused / course.asked:.2%} | "
            f"{1e3 * course.percentile(50):.0f} | {1e3 * course.percentile(99):.0f} | "
            f"{max(course.replicas)} | {course.pod_hours:.0f} |"
        )
    return "\n".join(rows)


def draw(found: Found, folder: Path) -> list[Path]:
    """A column an engine; below one another replicas, the share refused, the wait."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(plots.STYLE):
        figure, grid = pyplot.subplots(
            3, len(ENGINES), figsize=(plots.WIDTH, 6.0), layout="constrained", sharex=True
        )
        for column, engine in zip(grid.T, ENGINES, strict=True):
            for scaler, colour in _SHOWN.items():
                _lines(column, found[engine.title, scaler], scaler, colour)
            column[0].set_title(
                f"{engine.title}, {engine.start_s} s until a pod serves", loc="left"
            )
            column[2].set_xlabel("hour of the day")
            column[2].set_xlim(_FROM_H, _TO_H)
        for axes, label in zip(grid.T[0], ("replicas", "refused, %", "wait, s"), strict=True):
            axes.set_ylabel(label)
        grid[0][0].legend(title="scaled on", frameon=False)
        return plots.save(figure, folder / f"curve-{PART}")


def _lines(column: Any, course: Course, scaler: str, colour: str) -> None:
    seconds = range(int(_FROM_H * 3600), int(_TO_H * 3600), _EVERY_S)
    hours = [second / 3600 for second in seconds]
    refused = [100 * course.refusals[second] / course.demand[second] for second in seconds]
    for axes, values in (
        (column[0], [course.replicas[second] for second in seconds]),
        (column[1], refused),
        (column[2], [course.waits[second][0] for second in seconds]),
    ):
        axes.plot(hours, values, lw=1.2, color=colour, label=scaler)
        axes.set_ylim(bottom=0)
