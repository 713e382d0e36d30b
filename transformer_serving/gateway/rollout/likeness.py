"""Whether two bundles gave the same answer to one request, by what preprocess says counts of it.

A gist is a kind and one value a text (preprocess/answers/gist.py). Vectors are numpy's, which is
not imported here: the gateway itself computes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# Two whose scores were closer than this part of all scores' span may change places: no rounding
# leaves them where they were.
_CLOSE = 0.01
Gist = tuple[str, Any]


def are_alike(old: Gist, new: Gist, cosine: float) -> bool | None:
    """None where nobody here knows how to compare them."""
    if old[0] not in _KINDS or new[0] not in _KINDS:
        return None
    return old[0] == new[0] and _KINDS[old[0]](old[1], new[1], cosine)


def _words(old: Any, new: Any, _cosine: float) -> bool:
    return bool(old == new)


def _directions(old: Any, new: Any, cosine: float) -> bool:
    """Vectors [number, width] of length one: the cosine of each pair."""
    if old.shape != new.shape:
        return False
    # Not a number is not alike.
    return bool((old * new).sum(axis=-1).min() >= cosine)


Ranking = tuple[Sequence[Any], Sequence[float]]


def _ranked(old: Sequence[Ranking], new: Sequence[Ranking], _cosine: float) -> bool:
    return len(old) == len(new) and all(map(_is_ordered_alike, old, new))


def _is_ordered_alike(old: Ranking, new: Ranking) -> bool:
    """Whether nothing stands before what the old one found better by more than a little."""
    if not old[0] or not new[0]:
        return not old[0] and not new[0]
    scores = dict(zip(old[0], old[1], strict=True))
    worst = min(old[1])
    allowed = _CLOSE * (max(old[1]) - worst)
    left_out = [name for name in old[0] if name not in set(new[0])]
    before = float("inf")
    # What an answer of the best few leaves out stands after them, at the best where they end.
    for name in [*new[0], *left_out]:
        score = scores.get(name, worst)
        if not score - before <= allowed:
            return False
        before = min(before, score)
    return True


_KINDS: dict[str, Callable[[Any, Any, float], bool]] = {
    "words": _words,
    "directions": _directions,
    "ranked": _ranked,
}
