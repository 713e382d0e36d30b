"""Figures of every request, added up in memory until Prometheus is told of them.

What prometheus_client writes goes into a file: a number costs it as much as thirty here
(`python -m benchmarks.request_cost`).

Tested by tests/contract/test_tallies.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any


class CounterTally:
    """What `told`, a counter of prometheus_client with its labels, was not told of yet."""

    __slots__ = ("_told", "value")

    def __init__(self, told: Any) -> None:
        self._told = told
        self.value: float = 0

    def tell(self) -> None:
        if self.value:
            value, self.value = self.value, 0
            self._told.inc(value)


class HistogramTally:
    """What a histogram with its labels was not told of yet; `bounds` are its buckets' upper ones
    without the infinite one.
    """

    __slots__ = ("_bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self.clear()

    def observe(self, value: float) -> int:
        """Count it; the bucket that it is in."""
        bucket = bisect_left(self._bounds, value)
        self.counts[bucket] += 1
        self.total += value
        return bucket

    def tell(self, histogram: Any) -> None:
        """Its `observe` takes one value at a time, and writes two numbers for each."""
        if any(self.counts):
            for bucket, count in zip(histogram._buckets, self.counts, strict=True):
                if count:
                    bucket.inc(count)
            histogram._sum.inc(self.total)
            self.clear()

    def clear(self) -> None:
        self.counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0
