"""What a run was worth: answers a second, latencies, refusals, and the generator's own share.

Tested by tests/bench/test_load.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from transformer_serving.desk.bench.load import NO_ANSWER, Exchange, Run


@dataclass(frozen=True)
class Latency:
    """Milliseconds from the moment a request was due to the end of its answer."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    highest: float


@dataclass(frozen=True)
class LoadFigures:
    """`goodput` and `texts` count only answers with status 200, a second.

    `latency` is of those alone and None when there was none; `by_label` splits it by payload.
    `statuses` counts every request ("no answer" where there was none). `generator_cpu` is the
    share of one core that the generator used; `late_ms` is the 99th percentile of how much later
    than due requests were sent.
    """

    requests: int
    elapsed_s: float
    goodput: float
    texts: float
    statuses: dict[str, int]
    latency: Latency | None
    generator_cpu: float
    late_ms: float
    by_label: dict[str, Latency] = field(default_factory=dict)


def figures(run: Run) -> LoadFigures:
    """The figures of one run."""
    answered = [exchange for exchange in run.exchanges if exchange.status == 200]
    labels = sorted({exchange.label for exchange in answered})
    elapsed = run.elapsed_s or math.inf
    late = sorted((exchange.sent - exchange.due) * 1e3 for exchange in run.exchanges)
    return LoadFigures(
        requests=len(run.exchanges),
        elapsed_s=run.elapsed_s,
        goodput=len(answered) / elapsed,
        texts=sum(exchange.texts for exchange in answered) / elapsed,
        statuses=_statuses(run.exchanges),
        latency=_latency(answered),
        generator_cpu=run.cpu_s / elapsed,
        late_ms=percentile(late, 99.0) if late else 0.0,
        by_label={
            label: found
            for label in labels
            if (found := _latency(e for e in answered if e.label == label)) is not None
        }
        if len(labels) > 1
        else {},
    )


def shown(rate: float) -> str:
    """A rate with three digits that say something, and whole from 100 on."""
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` percent of the ordered values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def _latency(exchanges: Iterable[Exchange]) -> Latency | None:
    times = sorted((exchange.done - exchange.due) * 1e3 for exchange in exchanges)
    if not times:
        return None
    return Latency(
        len(times),
        sum(times) / len(times),
        percentile(times, 50.0),
        percentile(times, 90.0),
        percentile(times, 99.0),
        percentile(times, 99.9),
        times[-1],
    )


def _statuses(exchanges: Sequence[Exchange]) -> dict[str, int]:
    counts = Counter(exchange.status for exchange in exchanges)
    return {
        "no answer" if status == NO_ANSWER else str(status): counts[status]
        for status in sorted(counts)
    }
