"""What came of an attack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Seen:
    """Statuses, counts and memory decide whether it `holds`; None where it could not be tried.

    `times` are only told: they are the machine's and its load's.
    """

    text: str
    holds: bool | None
    times: str = ""

    def __str__(self) -> str:
        return f"{self.text}; {self.times}" if self.times else self.text


def counted(statuses: Mapping[Any, int]) -> str:
    """As '20 x 413, 3 x closed', the most frequent first."""
    rows = Counter(dict(statuses)).most_common()
    return ", ".join(f"{count} x {status or 'no answer'}" for status, count in rows)
