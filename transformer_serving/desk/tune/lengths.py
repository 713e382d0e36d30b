"""A distribution of text lengths as one writes it: `8-32:70,100-200:30`, words and weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from transformer_serving.desk.failure import Failure

_PART = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?(?::([0-9]{1,6}))?")
_MOST_WORDS = 100_000
_MOST_PARTS = 64


@dataclass(frozen=True)
class Part:
    """Texts of `least` to `most` words, each as likely, and what share of all they are."""

    least: int
    most: int
    weight: int = 1


def read_lengths(text: str) -> tuple[Part, ...]:
    """Parts `WORDS`, `WORDS-WORDS`, each with `:WEIGHT` or without, with commas between.

    Raises Failure (exit code 2) naming the first part that is none, by its place.
    """
    texts = text.split(",")
    if len(texts) > _MOST_PARTS:
        raise Failure(
            f"--lengths: must be at most {_MOST_PARTS} parts, got {len(texts)}", exit_code=2
        )
    return tuple(_part(number, one.strip()) for number, one in enumerate(texts, 1))


def _part(number: int, text: str) -> Part:
    found = _PART.fullmatch(text)
    if found is None:
        raise Failure(
            f"--lengths, part {number}: must be WORDS or WORDS-WORDS, with :WEIGHT or without, "
            "such as 8-32:70",
            exit_code=2,
        )
    least = int(found[1])
    most = int(found[2] or least)
    weight = int(found[3] or 1)
    if not 1 <= least <= most <= _MOST_WORDS or weight < 1:
        raise Failure(
            f"--lengths, part {number}: words must rise from 1 to at most {_MOST_WORDS}, and a "
            f"weight be at least 1; got {least}-{most}:{weight}",
            exit_code=2,
        )
    return Part(least, most, weight)


def spread_evenly(parts: Sequence[Part], count: int) -> list[int]:
    """`count` lengths in words, the same at every call: even steps through the distribution."""
    total = sum(part.weight for part in parts)
    found = []
    for step in range(count):
        place = (step + 0.5) / count * total
        for part in parts:
            if place < part.weight or part is parts[-1]:
                share = min(place / part.weight, 1.0)
                found.append(part.least + round(share * (part.most - part.least)))
                break
            place -= part.weight
    return found
