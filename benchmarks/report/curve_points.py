"""Which points of a stored curve are drawn: those at which the requests were answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.runs.results import MOST_FAILED

Point = Mapping[str, Any]


def drawn(curve: Mapping[str, Any]) -> list[Point]:
    return [point for point in curve["points"] if _is_answered(point)]


def left_out(curve: Mapping[str, Any]) -> str:
    """A sentence about the points that are not drawn; empty where all are."""
    places = [f"{point['at']:g}" for point in curve["points"] if not _is_answered(point)]
    if not places:
        return ""
    return (
        f"Not drawn: {curve['axis']} {', '.join(places)}; more than {MOST_FAILED:.0%} of the "
        "requests there were not answered with 200."
    )


def _is_answered(point: Point) -> bool:
    """Older runs did not store how many requests there were: of those, none may have failed."""
    failed, requests = float(point["not_200"]), float(point.get("requests", 0.0))
    return failed <= MOST_FAILED * requests
