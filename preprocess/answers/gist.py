"""What of an answer is compared with another bundle's: its words, its vectors, or its order.

In types of Python and numpy alone, since the other bundle's code may be of another version. Who
compares them is transformer_serving/gateway/rollout/likeness.py.

Tested by tests/preprocess/answers/test_gist.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from preprocess.tensors import Array

# A kind, and what there is to compare of it: one value a text.
Gist = tuple[str, Any]


def words(found: Sequence[Any]) -> Gist:
    """Labels or texts, which must be the same."""
    return "words", list(found)


def directions(found: Array) -> Gist:
    """Vectors [number, width] of length one, compared by their cosine."""
    return "directions", found


def ranked(found: Sequence[tuple[Sequence[Any], Sequence[float]]]) -> Gist:
    """Names with their scores, best first."""
    return "ranked", [(list(names), list(scores)) for names, scores in found]


def best_first(scores: Sequence[float]) -> tuple[list[int], list[float]]:
    """The places of the scores, the greatest first, with them."""
    places = sorted(range(len(scores)), key=lambda at: scores[at], reverse=True)
    return places, [scores[at] for at in places]
