"""Quantiles of a histogram's buckets, as Prometheus computes them.

Tested by tests/watch/test_quantiles.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def histogram_quantile(q: float, buckets: Mapping[float, float]) -> float | None:
    """The q-quantile, 0 < q <= 1, by linear interpolation within the bucket that it falls into.

    `buckets` are cumulative counts by upper bound, math.inf among them. It is what PromQL's
    histogram_quantile does with classic histograms
    (https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile): values
    are taken to be spread evenly in a bucket; the lowest begins at 0 where its upper bound is above
    0, else its upper bound is the answer; for one in the bucket without an end the answer is the
    highest finite bound. None, where PromQL says NaN: no observations, no bucket without an end, or
    that one alone.
    """
    bounds = sorted(buckets)
    if len(bounds) < 2 or bounds[-1] != math.inf:
        return None
    counts = _rising([buckets[bound] for bound in bounds])
    rank = q * counts[-1]
    if rank <= 0:
        return None
    at = next(at for at, count in enumerate(counts) if count >= rank)
    if at == len(bounds) - 1:
        return bounds[-2]
    if at == 0 and bounds[0] <= 0:
        return bounds[0]
    low, below = (bounds[at - 1], counts[at - 1]) if at else (0.0, 0.0)
    return low + (bounds[at] - low) * (rank - below) / (counts[at] - below)


def _rising(counts: list[float]) -> list[float]:
    """Never below the one before: pages of servers that are being asked are a little uneven."""
    most = 0.0
    return [most := max(most, count) for count in counts]
