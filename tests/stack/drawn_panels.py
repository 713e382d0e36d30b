"""One function for each kind of panel, which draws it into the axes that it is given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib import colormaps
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scripts.dashboards.panel import Kind, Panel
from tests.stack.drawn_units import UNITS
from tests.stack.watched import Watched

GROUND, PAPER, INK, FAINT = "#f4f5f7", "#ffffff", "#24292f", "#8a9099"
_COLOURS = (
    "#1f6fb2", "#e2a03f", "#3a9a5c", "#c44e52", "#7b61b8", "#17a2a2", "#a0522d", "#d46aa0",
    "#5f6b7a", "#9aa822",
)  # fmt: skip
_NAMED = {"red": "#c62f36", "green": "#2e8b57", "orange": "#e08a1e"}


@dataclass(frozen=True)
class Line:
    """One series: its legend, Unix times and values; NaN is left out."""

    name: str
    labels: dict[str, str]
    times: list[float]
    values: list[float]


@dataclass(frozen=True)
class Shown:
    """Of which stack, which endpoint is chosen, and when another bundle began to answer."""

    stack: Watched
    chosen: dict[str, str]
    step_s: float
    marks: list[tuple[float, str]]

    def lines(self, panel: Panel) -> list[Line]:
        found = []
        for query in panel.queries:
            if panel.kind.is_instant:
                rows = self.stack.last(query.expression, **self.chosen)
            else:
                rows = self.stack.since_begun(query.expression, self.step_s, **self.chosen)
            for row in rows:
                points = row.get("values") or [row["value"]]
                numbers = [(float(at), float(value)) for at, value in points]
                known = [(at, value) for at, value in numbers if math.isfinite(value)]
                if known:
                    times, values = map(list, zip(*known, strict=True))
                    name = legend(query.legend, row["metric"])
                    found.append(Line(name, row["metric"], times, values))
        return found


def legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), form)


def _nothing(axes: Any, panel: Panel) -> None:
    axes.axis("off")
    reason = panel.needs.value or "No data."
    axes.text(0.5, 0.5, reason, ha="center", va="center", color=FAINT, transform=axes.transAxes)


def _over_time(axes: Any, shown: Shown) -> None:
    """The axis of time, in minutes since the load began, and the marks."""
    begun = shown.stack.begun
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 3, 6, 10]))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda at, _: f"{int(at // 60)}:{int(at % 60):02d}")
    )
    for at, _ in shown.marks:
        axes.axvline(at - begun, color="#3871dc", linewidth=0.9, linestyle="--")
    axes.tick_params(labelsize=7.5, colors=FAINT, length=2)
    axes.grid(color="#e8eaed", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_color("#d8dbe0")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _named(axes: Any) -> None:
    """The legend below, of as many names as have room."""
    handles, names = axes.get_legend_handles_labels()
    wide = axes.get_window_extent().width / axes.figure.dpi
    columns = max(1, min(len(names), int(wide / (0.32 + 0.058 * max(map(len, names), default=1)))))
    axes.legend(
        handles[: 3 * columns], names[: 3 * columns], loc="upper left",
        bbox_to_anchor=(-0.02, -0.1), ncols=columns, frameon=False, fontsize=7.5, handlelength=1.2,
        labelspacing=0.25, borderaxespad=0.3, labelcolor=INK, columnspacing=1.2,
    )  # fmt: skip


def _numbers(axes: Any, panel: Panel) -> None:
    form = UNITS[panel.unit]
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: form(value)))


def lines(axes: Any, panel: Panel, shown: Shown) -> None:
    found = shown.lines(panel)
    if not found:
        return _nothing(axes, panel)
    for at, line in enumerate(found):
        times = [time - shown.stack.begun for time in line.times]
        colour = _COLOURS[at % len(_COLOURS)]
        axes.plot(times, line.values, color=colour, linewidth=1.2, label=line.name)
    _numbers(axes, panel)
    _over_time(axes, shown)
    axes.set_ylim(bottom=0)
    highest = axes.get_ylim()[1]
    for step in panel.steps:
        if step.value is not None and step.value < highest:
            axes.axhline(step.value, color=_NAMED[step.colour], linewidth=0.9, linestyle=":")
    return _named(axes)


def stacked(axes: Any, panel: Panel, shown: Shown) -> None:
    found = shown.lines(panel)
    if not found:
        return _nothing(axes, panel)
    times = sorted({time for line in found for time in line.times})
    of_each = [dict(zip(line.times, line.values, strict=True)) for line in found]
    axes.stackplot(
        [time - shown.stack.begun for time in times],
        [[known.get(time, 0.0) for time in times] for known in of_each],
        labels=[line.name for line in found], colors=_COLOURS, alpha=0.75, linewidth=0,
    )  # fmt: skip
    _numbers(axes, panel)
    _over_time(axes, shown)
    return _named(axes)


def heatmap(axes: Any, panel: Panel, shown: Shown) -> None:
    """Of cumulative buckets what is in each; empty ones at both ends are left out."""
    found = sorted(shown.lines(panel), key=lambda line: float(line.labels["le"]))
    if not found:
        return _nothing(axes, panel)
    times = sorted({time for line in found for time in line.times})
    grid, below = [], [0.0] * len(times)
    for line in found:
        known = dict(zip(line.times, line.values, strict=True))
        upto = [known.get(time, 0.0) for time in times]
        grid.append([max(0.0, one - other) for one, other in zip(upto, below, strict=True)])
        below = upto
    filled = [at for at, row in enumerate(grid) if max(row) > 0] or [0]
    first, last = max(0, filled[0] - 1), min(len(grid), filled[-1] + 2)
    mesh = [[math.sqrt(value) for value in row] for row in grid[first:last]]
    edges = [time - shown.stack.begun for time in times]
    axes.pcolormesh(
        [*edges, edges[-1] + shown.step_s], range(last - first + 1), mesh,
        cmap=colormaps["Blues"].resampled(16), shading="flat",
    )  # fmt: skip
    _over_time(axes, shown)
    axes.grid(visible=False)
    bounds = [float(line.labels["le"]) for line in found[first:last]]
    names = ["more" if math.isinf(bound) else UNITS[panel.unit](bound) for bound in bounds]
    axes.set_yticks([at + 1 for at in range(len(names))], names, fontsize=7)
    return None


def _value(panel: Panel, line: Line) -> tuple[str, str]:
    """The text of a line's last value, and its colour."""
    value = line.values[-1]
    for word in panel.words:
        if value == word.value:
            return word.text, _NAMED[word.colour]
    colour = "green"
    for step in panel.steps:
        if step.value is None or value >= step.value:
            colour = step.colour
    return UNITS[panel.unit](value), _NAMED[colour] if panel.steps else _COLOURS[0]


def numbers(axes: Any, panel: Panel, shown: Shown) -> None:
    found = shown.lines(panel)
    if not found:
        return _nothing(axes, panel)
    axes.axis("off")
    for at, line in enumerate(found):
        middle = (at + 0.5) / len(found)
        text, colour = _value(panel, line)
        below = line.name
        if panel.kind is Kind.NAMES:
            text, _, below = line.name.partition(", ")
        # A letter is about two thirds as wide as it is high.
        room = axes.get_window_extent().width / axes.figure.dpi * 72 / len(found)
        size = min(19.0, 1.4 * room / max(1, len(text)))
        axes.text(
            middle, 0.35, text, ha="center", va="center", fontsize=size, color=colour,
            transform=axes.transAxes,
        )  # fmt: skip
        axes.text(
            middle, -0.25, below, ha="center", va="center", fontsize=8, color=FAINT,
            transform=axes.transAxes,
        )  # fmt: skip
    return None


def bars(axes: Any, panel: Panel, shown: Shown) -> None:
    found = sorted(shown.lines(panel), key=lambda line: line.values[-1])
    if not found:
        return _nothing(axes, panel)
    values = [line.values[-1] for line in found]
    axes.barh(range(len(found)), values, color=_COLOURS[0], height=0.6)
    for at, value in enumerate(values):
        axes.annotate(
            UNITS[panel.unit](value), (value, at), xytext=(4, 0), textcoords="offset points",
            va="center", fontsize=8, color=INK,
        )  # fmt: skip
    axes.set_yticks([])
    for at, line in enumerate(found):
        axes.annotate(
            line.name, (0, at + 0.32), xytext=(0, 1), textcoords="offset points", fontsize=8,
            color=INK, va="bottom",
        )  # fmt: skip
    axes.set_ylim(-0.6, len(found) - 0.1)
    axes.margins(x=0.15)
    axes.set_xticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    return None


def states(axes: Any, panel: Panel, shown: Shown) -> None:
    found = shown.lines(panel)
    if not found:
        return _nothing(axes, panel)
    known = {word.value: word for word in panel.words}
    for at, line in enumerate(found):
        for time, value in zip(line.times, line.values, strict=True):
            colour = _NAMED[known[int(value)].colour]
            axes.barh(
                at,
                shown.step_s,
                left=time - shown.stack.begun,
                height=0.7,
                color=colour,
                linewidth=0,
            )
    _over_time(axes, shown)
    axes.grid(visible=False)
    axes.set_yticks([])
    for at, line in enumerate(found):
        axes.annotate(
            line.name, (line.times[0] - shown.stack.begun, at), xytext=(4, 0),
            textcoords="offset points", fontsize=8,
            color=PAPER, va="center",
        )  # fmt: skip
    handles = [Rectangle((0, 0), 1, 1, color=_NAMED[word.colour]) for word in panel.words]
    axes.legend(
        handles, [word.text for word in panel.words], loc="upper left",
        bbox_to_anchor=(-0.02, -0.1), ncols=2, frameon=False, fontsize=7.5, handlelength=1.0,
    )  # fmt: skip
    return None


DRAWN: dict[Kind, Callable[[Any, Panel, Shown], None]] = {
    Kind.LINES: lines,
    Kind.STACKED: stacked,
    Kind.HEATMAP: heatmap,
    Kind.STAT: numbers,
    Kind.NAMES: numbers,
    Kind.BARS: bars,
    Kind.STATES: states,
}
