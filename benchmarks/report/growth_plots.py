"""Pictures of the study of growth: each quantity alone, and the model beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import pyplot
from matplotlib.ticker import StrMethodFormatter

from benchmarks.report import growth_model as models, plots
from benchmarks.report.growth_points import (
    FITTED,
    NAMES,
    PACED,
    PARTS,
    Place,
    Point,
    of_series,
    read,
)
from benchmarks.runs.results import Results

_COLOURS = {"worker": "#1f6fb2", "triton": "#e2a03f", "engine": "#7a9a4f", "load": "#b0b4ba"}
_MARKERS = {"clients": "o", "endpoints": "s", "workers": "^", "tritons": "D"}
_PLAIN = StrMethodFormatter("{x:g}")
_HELD_OUT = {"together": "several at a time", "paced": "open loop at 65 %"}


def draw(results: Results, folder: Path) -> list[Path]:
    """The pictures of a run that has measured growth; the files written."""
    found = results.values.get("growth")
    if not found:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    points = read(found["points"])
    with matplotlib.rc_context(plots.STYLE):
        written = plots.save(_by_quantity(points), folder / "curve-growth")
        written += plots.save(_by_crowd(found, points), folder / "curve-growth-model")
    return written


def _by_quantity(points: Mapping[Place, Point]) -> Any:
    """A panel a quantity, a line a part, the bounds as whiskers."""
    figure, grid = pyplot.subplots(
        2, 2, figsize=(plots.WIDTH, 5.6), layout="constrained", sharey=True
    )
    for axes, name in zip(grid.flat, FITTED, strict=True):
        rows = of_series(points, [name])
        places = [getattr(point.place, name) for point in rows]
        for part, title in PARTS.items():
            spreads = [point.figure(f"{part}_us") for point in rows]
            medians = [one.median for one in spreads]
            sides = (
                [one.median - one.lower for one in spreads],
                [one.upper - one.median for one in spreads],
            )
            axes.errorbar(
                places, medians, yerr=sides, marker="o", ms=3, lw=1.2, capsize=2, elinewidth=0.8,
                color=_COLOURS[part], label=title,
            )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [str(place) for place in places])
        axes.minorticks_off()
        axes.set_xlabel(NAMES.get(name, name))
    # Of all panels, and so only once each has its lines.
    grid[0][0].set_ylim(bottom=0)
    for axes in grid[:, 0]:
        axes.set_ylabel("µs of processor a request")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=4, frameon=False)
    return figure


def _by_crowd(found: Mapping[str, Any], points: Mapping[Place, Point]) -> Any:
    """Over the crowd before a call: texts a call, and the parts' time; hollow is held out."""
    model = models.fitted(of_series(points, FITTED), of_series(points, PACED), found["most_texts"])
    crowds = np.geomspace(0.3, 600, 200)
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(plots.WIDTH, 3.6), layout="constrained")
    left.plot(crowds, [model.texts(at) for at in crowds], lw=1.2, color="#444444", label="model")
    paced = [model.texts(at, is_paced=True) for at in crowds]
    left.plot(crowds, paced, lw=1.2, ls="--", color="#444444", label="model, open loop")
    for part in ("worker", "triton"):
        times = [model.us(part, at) for at in crowds]
        right.plot(crowds, times, lw=1.2, color=_COLOURS[part], label=f"{PARTS[part]}, model")
        paced = [model.us(part, at, is_paced=True) for at in crowds]
        right.plot(crowds, paced, lw=1.2, ls="--", color=_COLOURS[part])
    for name, marker in _MARKERS.items():
        _put(left, right, of_series(points, [name]), {"marker": marker}, name)
    for (name, title), marker in zip(_HELD_OUT.items(), "ov", strict=True):
        _put(left, right, of_series(points, [name]), {"marker": marker, "mfc": "none"}, title)
    for axes, label in ((left, "texts a call"), (right, "µs of processor a request")):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(_PLAIN)
        axes.set_xlabel("requests under way an endpoint and worker")
        axes.set_ylabel(label)
    left.set_yscale("log")
    left.yaxis.set_major_formatter(_PLAIN)
    left.legend(frameon=False)
    right.set_ylim(bottom=0)
    right.legend(frameon=False)
    return figure


def _put(left: Any, right: Any, rows: list[Point], style: dict[str, str], title: str) -> None:
    crowds = [models.crowd_of(point) for point in rows]
    shared = {"ls": "", "ms": 4.5, **style}
    texts = [point.figure("texts_a_call").median for point in rows]
    left.plot(crowds, texts, color="#444444", label=NAMES.get(title, title), **shared)
    for part in ("worker", "triton"):
        right.plot(crowds, [point.us([part]) for point in rows], color=_COLOURS[part], **shared)
