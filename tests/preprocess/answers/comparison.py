"""How far an answer is from the reference's; what may differ, and by how much."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

TOLERANCE = 1e-4
# The largest difference of each task that the session has seen.
LARGEST: defaultdict[str, float] = defaultdict(float)


class Unequal(AssertionError):
    """Another label, span, text, shape or rank, or a score too far away."""


def check_equal(task: str, ours: Any, reference: Any) -> None:
    """Raises Unequal. Ranks may be swapped among scores that are within the tolerance."""
    LARGEST[task] = max(LARGEST[task], difference(ours, reference))


def check_best(ours: list[Any], every: list[Any]) -> None:
    """A rerank's answer against the first of the reference's ranks: where the cut falls two may be
    level."""
    LARGEST["rerank"] = max(LARGEST["rerank"], _ranked(ours, every[: len(ours)], every))


def difference(ours: Any, reference: Any) -> float:
    """The largest difference between numbers that belong together. Raises Unequal."""
    if isinstance(ours, dict) and isinstance(reference, dict):
        return _objects(ours, reference)
    if isinstance(ours, list) and isinstance(reference, list):
        return _lists(ours, reference)
    if isinstance(ours, float) and isinstance(reference, float):
        if math.isnan(ours) or not abs(ours - reference) <= TOLERANCE:
            raise Unequal(f"{ours} for {reference}")
        return abs(ours - reference)
    if type(ours) is not type(reference) or ours != reference:
        raise Unequal(f"{ours!r} for {reference!r}")
    return 0.0


def _objects(ours: dict[str, Any], reference: dict[str, Any]) -> float:
    if {"labels", "scores"} <= ours.keys() & reference.keys():
        ours, reference = _as_rows(ours), _as_rows(reference)
    if ours.keys() != reference.keys():
        raise Unequal(f"keys {sorted(ours)} for {sorted(reference)}")
    return max((difference(ours[key], reference[key]) for key in ours), default=0.0)


def _lists(ours: list[Any], reference: list[Any]) -> float:
    if len(ours) != len(reference):
        raise Unequal(f"{len(ours)} items for {len(reference)}: {ours} for {reference}")
    if all(isinstance(row, dict) and "score" in row for row in (*ours, *reference)):
        return _ranked(ours, reference, reference)
    pairs = zip(ours, reference, strict=True)
    return max((difference(*pair) for pair in pairs), default=0.0)


def _as_rows(answer: dict[str, Any]) -> dict[str, Any]:
    """zero-shot's two lists as one of labels with their scores."""
    rows = zip(answer["labels"], answer["scores"], strict=True)
    rest = {key: value for key, value in answer.items() if key not in ("labels", "scores")}
    return {**rest, "rows": [{"label": label, "score": score} for label, score in rows]}


def _ranked(ours: list[Any], reference: list[Any], every: list[Any]) -> float:
    largest = 0.0
    for mine, theirs in zip(ours, reference, strict=True):
        largest = max(largest, difference(mine["score"], theirs["score"]))
        if _name(mine) == _name(theirs):
            continue
        # Another one stands here: allowed where the two could be either way round.
        near = [row for row in every if abs(row["score"] - mine["score"]) <= TOLERANCE]
        if _name(mine) not in map(_name, near):
            raise Unequal(f"{mine} for {theirs}")
    return largest


def _name(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple((key, repr(value)) for key, value in sorted(row.items()) if key != "score")
