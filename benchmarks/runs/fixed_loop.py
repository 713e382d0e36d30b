"""The pace of the machine itself, by a fixed loop: a virtual machine's host changes it in minutes.

What a table's figures differ by from round to round is of the servers only beyond what this does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from itertools import chain

# Some 10 ms on a processor of 2023, and three of them take little of a measurement of 2 s.
_TURNS = 100_000
_LOOPS = 3


def loop_ms() -> float:
    """Milliseconds of the shortest of three: what takes the processor for a moment is left out."""
    return round(min(_once() for _ in range(_LOOPS)), 2)


def _once() -> float:
    begun, total = time.perf_counter(), 0
    for number in range(_TURNS):
        total += number * number % 7
    return 1e3 * (time.perf_counter() - begun)


def told(stored: Sequence[Sequence[float]]) -> str:
    """For a table's stamp, of the times by round: the median, the shortest and the longest; empty
    where none were taken."""
    times = list(chain.from_iterable(stored))
    if not times:
        return ""
    shortest, longest = min(times), max(times)
    return f"a fixed loop took {statistics.median(times):.3g} ms, {shortest:.3g} to {longest:.3g}"
