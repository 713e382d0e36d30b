"""Whether an answer is the recorded one, and by how much it is not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any


def agrees(answer: Any, expected: Any, tolerance: float) -> bool:
    """Whether two answers have the same shape and texts, and numbers within `tolerance`.

    The tolerance is relative for numbers larger than 1. Rows with scores may stand in another
    order, as those of near scores do on another CPU.
    """
    if isinstance(expected, bool) or isinstance(answer, bool):
        return answer is expected
    if isinstance(expected, (int, float)) and isinstance(answer, (int, float)):
        return _difference(answer, expected) <= tolerance
    if isinstance(expected, dict) and isinstance(answer, dict):
        return answer.keys() == expected.keys() and all(
            agrees(answer[name], expected[name], tolerance) for name in expected
        )
    if isinstance(expected, list) and isinstance(answer, list):
        return len(answer) == len(expected) and (
            all(agrees(*pair, tolerance) for pair in zip(answer, expected, strict=True))
            or _agree_in_any_order(answer, expected, tolerance)
        )
    return bool(answer == expected)


def _agree_in_any_order(answer: list[Any], expected: list[Any], tolerance: float) -> bool:
    left = list(expected)
    for row in answer:
        found = next((other for other in left if agrees(row, other, tolerance)), None)
        if not isinstance(found, dict) or "score" not in found:
            return False
        left.remove(found)
    return True


def disagreement(answer: Any, expected: Any, tolerance: float) -> str:
    """How an answer that does not agree differs; numbers only, nothing that it says."""
    found = list(_differences(answer, expected))
    largest = max((difference for difference in found if difference is not None), default=0.0)
    parts = []
    if largest > tolerance:
        parts.append(f"its numbers by up to {largest:.3g} where {tolerance:.3g} is allowed")
    if None in found or not parts:
        parts.append("its texts or its form")
    return f"the answer differs from the recorded one: {' and '.join(parts)}"


def _differences(answer: Any, expected: Any) -> Iterator[float | None]:
    """Of every number in its place; None for whatever else is not the same."""
    if isinstance(expected, list) and isinstance(answer, list):
        answer, expected = dict(enumerate(answer)), dict(enumerate(expected))
    if isinstance(expected, dict) and isinstance(answer, dict):
        if answer.keys() != expected.keys():
            yield None
        for name in answer.keys() & expected.keys():
            yield from _differences(answer[name], expected[name])
    elif _is_number(answer) and _is_number(expected):
        yield _difference(answer, expected)
    elif answer != expected:
        yield None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _difference(answer: float, expected: float) -> float:
    """Relative for numbers larger than 1; infinite where one of them is no finite number."""
    difference = abs(answer - expected) / max(1.0, abs(expected))
    return difference if math.isfinite(difference) else math.inf
