"""`make dashboard-pictures`: what the dashboards show of a stack under load, drawn without Grafana.

Each panel stands where its dashboard has it and is drawn with what its own queries find in a real
Prometheus. Colours, letters and legends are matplotlib's.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.patches import Rectangle
from PIL import Image

from scripts.dashboards.grafana import text
from scripts.dashboards.panel import GRID_COLUMNS, Dashboard, Panel
from scripts.dashboards.table import DASHBOARDS
from scripts.generated_part import take_no_options
from tests.stack.conftest import ROOT
from tests.stack.drawn_panels import DRAWN, GROUND, INK, PAPER, Shown
from tests.stack.watched import REVIEWS, Watched, deploy, watched
from transformer_serving.desk.demo import GENERATOR

matplotlib.use("Agg")
from matplotlib import pyplot  # the backend is chosen before

FOLDER = ROOT / "docs" / "images"
_SECONDS = 240
_STEP_S = 1.0
_WIDTH_INCHES, _ROW_INCHES, _DPI = 15.0, 0.34, 80
# Above the first row: the dashboard's title.
_HEAD_ROWS = 2
# The rows that another endpoint is chosen for than the first.
_OF_GENERATED_TEXT = "Text generation"


def draw(shown: Dashboard, stack: Watched) -> bytes:
    """The PNG of one dashboard."""
    placed = json.loads(text(shown))["panels"]
    rows = _HEAD_ROWS + max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in placed)
    figure = pyplot.figure(figsize=(_WIDTH_INCHES, _ROW_INCHES * rows), facecolor=GROUND)
    figure.text(0.006, 1 - 1.3 / rows, shown.title, fontsize=15, weight="bold", color=INK)
    endpoint, panels = REVIEWS, shown.panels()
    for place in placed:
        at = place["gridPos"]
        bottom = 1 - (_HEAD_ROWS + at["y"] + at["h"]) / rows
        if place["type"] == "row":
            endpoint = GENERATOR if place["title"] == _OF_GENERATED_TEXT else REVIEWS
            title = f"{place['title']}: {endpoint}" if shown.variables else place["title"]
            figure.text(0.006, bottom + 0.3 / rows, title, fontsize=12, color=INK)
            continue
        box = (at["x"] / GRID_COLUMNS, bottom, at["w"] / GRID_COLUMNS, at["h"] / rows)
        _panel(figure, box, next(panels), _found(shown, stack, endpoint))
    made = io.BytesIO()
    figure.savefig(made, dpi=_DPI, facecolor=GROUND)
    pyplot.close(figure)
    return few_coloured(made.getvalue())


def few_coloured(png: bytes) -> bytes:
    """A third of the bytes; unlike the most frequent colours these have those of short lines."""
    made = io.BytesIO()
    with Image.open(io.BytesIO(png)) as read:
        few = read.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(made, "png", optimize=True)
    return made.getvalue()


def _found(shown: Dashboard, stack: Watched, endpoint: str) -> Shown:
    chosen = {"endpoint": endpoint, "model": endpoint} if shown.variables else {}
    marks = [
        (float(row["values"][0][0]), row["metric"]["bundle"])
        for mark in shown.marks
        for row in stack.since_begun(mark.expression, _STEP_S, **chosen)
    ]
    return Shown(stack, chosen, _STEP_S, marks)


def _panel(figure: Any, box: tuple[float, float, float, float], panel: Panel, shown: Shown) -> None:
    """A card with the panel's title, and what it draws inside."""
    left, bottom, width, height = box
    inches_wide, inches_high = figure.get_size_inches()
    gap_x, gap_y = 0.05 / inches_wide, 0.05 / inches_high
    card = Rectangle(
        (left + gap_x, bottom + gap_y), width - 2 * gap_x, height - 2 * gap_y,
        transform=figure.transFigure, facecolor=PAPER, edgecolor="#d8dbe0", linewidth=0.8,
        zorder=-1,
    )  # fmt: skip
    figure.add_artist(card)
    figure.text(
        left + 0.1 / inches_wide, bottom + height - 0.24 / inches_high, panel.title,
        fontsize=9.5, color=INK,
    )  # fmt: skip
    inside = figure.add_axes(
        (
            left + 0.58 / inches_wide,
            bottom + 0.68 / inches_high,
            width - 0.75 / inches_wide,
            height - 1.04 / inches_high,
        )
    )
    DRAWN[panel.kind](inside, panel, shown)


def main() -> None:
    take_no_options(__doc__)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        with watched(place) as stack:
            time.sleep(_SECONDS / 2)
            deploy(stack.stack, place, REVIEWS, 3.0)
            time.sleep(_SECONDS / 2)
            for shown in DASHBOARDS:
                (FOLDER / f"dashboard-{shown.name}.png").write_bytes(draw(shown, stack))


if __name__ == "__main__":
    main()
