"""Two answers to one request, compared as what they are: scores by key, or vectors.

Scores may be in another order, and the last of a cut list may be another, where they differ by no
more than is allowed; which key has the best score may not.

Tested by tests/parity/test_check.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

Scores = dict[Hashable, float]
# The largest difference of a score, and whether the best key is the expected one's.
_Part = tuple[float, bool]


@dataclass(frozen=True)
class Distance:
    """`difference` of a score or vector element, relative where they are larger than 1.

    `agreement` is the part of the decisions that are the same, `cosine` of the two vectors; None
    where an answer has no such thing.
    """

    difference: float
    agreement: float | None
    cosine: float | None


def distance(task: str, expected: Any, got: Any, allowed: float) -> Distance:
    """How far `got` is from `expected`; infinitely for another shape or what is not a number."""
    return _MEASURES[task](expected, got, allowed)


def _scored(view: Callable[[Any], list[Scores]]) -> Callable[[Any, Any, float], Distance]:
    def measure(expected: Any, got: Any, allowed: float) -> Distance:
        wanted, found = view(expected), view(got)
        if len(wanted) != len(found):
            return Distance(float("inf"), 0.0, None)
        parts = [_compare(*pair, allowed) for pair in zip(wanted, found, strict=True)]
        agreement = sum(agreed for _, agreed in parts) / len(parts) if parts else 1.0
        return Distance(max((far for far, _ in parts), default=0.0), agreement, None)

    return measure


def _compare(expected: Scores, got: Scores, allowed: float) -> _Part:
    if not expected or not got:
        return (0.0, True) if expected == got else (float("inf"), False)
    scale = max(1.0, max(map(abs, expected.values())))
    far = 0.0
    for key, score in expected.items():
        # A key that is left out scored no more than the last that is in.
        other = got.get(key, min(score, min(got.values())))
        far = max(far, _number(abs(score - other)))
    best, chosen = max(expected, key=expected.__getitem__), max(got, key=got.__getitem__)
    lost = expected[best] - expected.get(chosen, min(expected.values()))
    return far / scale, lost / scale <= allowed


def _answers(expected: Any, got: Any, allowed: float) -> Distance:
    """One answer, against the reference's and those that it ranks behind: its score is the best
    one's, and a text that is none of them is worth no more than the last."""
    wanted, found = _rows(expected), _rows(got)
    if not wanted or not found:
        alike = wanted == found
        return Distance(0.0 if alike else float("inf"), float(alike), None)
    best, chosen = wanted[0]["score"], found[0]
    scores = {row["answer"].lower(): row["score"] for row in reversed(wanted)}
    # The best one's words at another place too: answers that read the same are one.
    lost = best - scores.get(chosen["answer"].lower(), min(scores.values()))
    return Distance(_number(abs(best - chosen["score"])), float(lost <= allowed), None)


def _entities(expected: Any, got: Any, allowed: float) -> Distance:
    """Every token is a decision of its own, judged by the reference's `scores` of all labels where
    it has them; a token that only one answer has is a wrong one."""
    wanted, found = ({_place(row): row for row in rows} for rows in (expected, got))
    shared = wanted.keys() & found.keys()
    parts = [_entity(wanted[key], found[key], allowed) for key in shared]
    every = len(wanted.keys() | found.keys())
    agreement = sum(agreed for _, agreed in parts) / every if every else 1.0
    return Distance(max((far for far, _ in parts), default=0.0), agreement, None)


def _entity(expected: Mapping[str, Any], got: Mapping[str, Any], allowed: float) -> _Part:
    label, chosen = (row.get("entity") or row.get("entity_group") for row in (expected, got))
    scores = expected.get("scores") or {label: expected["score"]}
    far, agreed = _compare(scores, {chosen: got["score"]}, allowed)
    # A label that the reference says nothing of may be any worse.
    return far, agreed and chosen in scores


def _place(row: Mapping[str, Any]) -> Hashable:
    """Several tokens may be of the same characters; groups of tokens have no index."""
    return row.get("index"), row["start"], row["end"]


def _vectors(expected: Any, got: Any, allowed: float) -> Distance:
    """Of vectors [width] or of one vector a token, [tokens, width]."""
    import numpy as np

    wanted, found = (np.atleast_2d(np.array(value, np.float64)) for value in (expected, got))
    if wanted.shape != found.shape:
        return Distance(float("inf"), None, -1.0)
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    lengths = np.linalg.norm(wanted, axis=1) * np.linalg.norm(found, axis=1)
    cosines = (wanted * found).sum(axis=1) / np.maximum(lengths, 1e-30)
    far = _number(float(np.abs(wanted - found).max(initial=0.0)))
    return Distance(far / scale, None, float(np.nan_to_num(cosines, nan=-1.0).min()))


def _number(value: float) -> float:
    """What is not a number is as wrong as can be; plain max() would step over it."""
    return float(value) if value == value else float("inf")


def _fillings(answer: Any) -> list[Scores]:
    masks = answer if answer and isinstance(answer[0], list) else [answer]
    return [{row["token"]: row["score"] for row in rows} for rows in masks]


def _rows(answer: Any) -> list[dict[str, Any]]:
    """The rows of an answer that is one row where only the best was asked for."""
    return [answer] if isinstance(answer, dict) else list(answer)


_MEASURES: dict[str, Callable[[Any, Any, float], Distance]] = {
    "text-classification": _scored(
        lambda answer: [{row["label"]: row["score"] for row in _rows(answer)}]
    ),
    "token-classification": _entities,
    "question-answering": _answers,
    "fill-mask": _scored(_fillings),
    "zero-shot-classification": _scored(
        lambda answer: [dict(zip(answer["labels"], answer["scores"], strict=True))]
    ),
    "feature-extraction": _vectors,
    "sentence-embedding": lambda expected, got, allowed: _vectors(
        expected["embedding"], got["embedding"], allowed
    ),
    "sentence-similarity": _scored(lambda answer: [dict(enumerate(answer["scores"]))]),
    "rerank": _scored(lambda answer: [{row["index"]: row["score"] for row in answer}]),
}
