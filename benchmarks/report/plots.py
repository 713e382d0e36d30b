"""Pictures of a stored run, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.patches import Patch
from matplotlib.ticker import ScalarFormatter

matplotlib.use("Agg")
from matplotlib import pyplot  # the backend is chosen before

from benchmarks.report import curve_points
from benchmarks.report.tables import marked
from benchmarks.runs.results import Results, Row

_COLOURS = {"ours": "#1f6fb2", "peer": "#b0b4ba", "limit": "#e2a03f"}
_KINDS = {"ours": "ours", "peer": "others", "limit": "limit: engine, Triton or web layer alone"}
WIDTH = 8.0
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "transformer-serving",
    "figure.dpi": 110,
}


def draw(results: Results, folder: Path) -> list[Path]:
    """Every picture that the run has figures for; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    with matplotlib.rc_context(STYLE):
        for load, title in results.loads.items():
            for computes, name in ((True, load), (False, f"{load}-no-engine")):
                rows = results.measured(load, computes=computes)
                if rows and load != "mixed":
                    drawn = _bars(results, rows, load, title if computes else f"{title}, no engine")
                    written += save(drawn, folder / f"throughput-{name}")
        for peer in ("gateway", "app"):
            if results.classes(peer):
                written += save(_classes(results, peer), folder / f"mixed-{peer}")
        for name, curve in results.values.get("curves", {}).items():
            if curve_points.drawn(curve):
                written += save(_curve(curve), folder / f"curve-{name}")
    return written


def _bars(results: Results, rows: Sequence[Row], load: str, title: str) -> Any:
    """Medians as bars, the bounds as whiskers, the number at the end."""
    figure, axes = pyplot.subplots(figsize=(WIDTH, 1.2 + 0.32 * len(rows)), layout="constrained")
    spreads = [found for row in rows if (found := results.spread(row.name, load))]
    ordered = sorted(zip(rows, spreads, strict=True), key=lambda pair: pair[1].median)
    medians = [found.median for _, found in ordered]
    sides = (
        [found.median - found.lower for _, found in ordered],
        [found.upper - found.median for _, found in ordered],
    )
    axes.barh(
        range(len(ordered)), medians, xerr=sides, error_kw={"lw": 1, "capsize": 2},
        color=[_COLOURS[row.kind] for row, _ in ordered],
    )  # fmt: skip
    axes.set_yticks(range(len(ordered)), [f"{row.title} ({row.engine})" for row, _ in ordered])
    for place, (row, found) in enumerate(ordered):
        axes.annotate(
            f"{found.median:.0f}{marked(results, load, row.name)}", (found.upper, place),
            xytext=(6, 0), va="center",
            textcoords="offset points",
        )  # fmt: skip
    axes.set_xlabel("texts a second")
    axes.set_title(title, loc="left")
    axes.margins(x=0.1)
    handles = [
        Patch(color=_COLOURS[kind]) for kind in _KINDS if any(row.kind == kind for row in rows)
    ]
    names = [text for kind, text in _KINDS.items() if any(row.kind == kind for row in rows)]
    # Beside the bars: at their ends stand the figures.
    figure.legend(handles, names, loc="outside lower right", ncols=3, frameon=False)
    return figure


def _classes(results: Results, peer: str) -> Any:
    """The 99th percentile of each length class: alone on an idle server, and in the mix."""
    found = results.classes(peer)
    figure, axes = pyplot.subplots(figsize=(WIDTH, 3.2), layout="constrained")
    places = range(len(found))
    series = (
        ("idle_p99", "idle server", "#b0b4ba", -0.2),
        ("loaded_p99", "mixed load", "#1f6fb2", 0.2),
    )
    for key, label, colour, shift in series:
        axes.bar(
            [place + shift for place in places], [row[key] for row in found.values()], 0.38,
            label=label, color=colour,
        )  # fmt: skip
    axes.set_xticks(places, list(found))
    # From an idle server to a full one: on a straight axis the idle bars would vanish.
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylabel("99th percentile, ms")
    axes.set_title(f"Mixed lengths at 70 % of capacity, {results.rows[peer].title}", loc="left")
    axes.legend(frameon=False)
    return figure


def _curve(curve: Mapping[str, Any]) -> Any:
    """Four panels over one axis: throughput, latency, CPU, memory, where it was answered."""
    panels = (
        ("texts", "texts a second"),
        ("p99", "p99, ms"),
        ("cpu_ms", "CPU ms a text"),
        ("memory_mib", "memory, MiB"),
    )
    figure, grid = pyplot.subplots(2, 2, figsize=(WIDTH, 5.0), layout="constrained", sharex=True)
    points = curve_points.drawn(curve)
    places = [point["at"] for point in points]
    for axes, (key, label) in zip(grid.flat, panels, strict=True):
        values = [point[key] for point in points]
        axes.plot(places, values, marker="o", ms=3, color="#1f6fb2")
        axes.set_ylabel(label)
        # By themselves the axes would end close above a line that is nearly level, and cut it.
        axes.set_ylim(0, 1.1 * max(values) or None)
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()
    for axes in grid[1]:
        axes.set_xlabel(curve["axis"])
    figure.suptitle(curve["title"], x=0.02, ha="left")
    return figure


def save(figure: Any, path: Path) -> list[Path]:
    """As SVG and PNG; without the date, so that the same figures give the same file."""
    paths = [path.with_suffix(".svg"), path.with_suffix(".png")]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=110)
    pyplot.close(figure)
    return paths
