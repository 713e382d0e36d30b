"""PromQL that more than one panel is made of.

A share's whole is above 0 where it divides: an endpoint that nobody asks has no share, not NaN. Its
part may be of a label that no answer had yet, such as a status of 500; then it is 0 of the whole.
"""

from __future__ import annotations

from scripts.dashboards.panel import Query

P = "transformer_serving_"
REQUESTS = f"{P}request_duration_seconds"
# As long as Grafana needs for a rate at the zoom that is chosen, and never under four scrapes.
STEP = "$__rate_interval"
QUANTILES = (0.5, 0.95, 0.99)
# The figures of a language model's cache, as their names end and as a legend says it.
CACHE = (("use", "in use"), ("reserved", "reserved"))

# Of a model that generates text. Its calls return as soon as they are queued, and farewells count
# as calls: what Triton has of them is of no text.
TEXT = f"{P}generation_tokens_total"
UNLESS_TEXT = f" unless on (model) {TEXT}"


def of(figure: str, *labels: str) -> str:
    """The figure where all these conditions hold; empty ones are none."""
    inside = ",".join(label for label in labels if label)
    return f"{figure}{{{inside}}}" if inside else figure


def rate(figure: str, by: str = "", over: str = STEP) -> str:
    """What a counter rises by in a second, added up but for the labels in `by`."""
    return f"{_sum(by)} (rate({figure}[{over}]))"


def total(figure: str, by: str = "") -> str:
    return f"{_sum(by)} ({figure})"


def _sum(by: str) -> str:
    return f"sum by ({by})" if by else "sum"


def ratio(part: str, whole: str) -> str:
    return f"({part}) / (({whole}) > 0)"


def share(part: str, whole: str) -> str:
    return ratio(f"({part}) or 0 * ({whole})", whole)


def mean(histogram: str, *labels: str, by: str = "") -> str:
    """Of what a histogram observed."""
    return ratio(
        rate(of(f"{histogram}_sum", *labels), by), rate(of(f"{histogram}_count", *labels), by)
    )


def buckets(histogram: str, *labels: str, by: str = "le") -> str:
    return rate(of(f"{histogram}_bucket", *labels), by)


def quantile(part: float, histogram: str, *labels: str, by: str = "le") -> str:
    return f"histogram_quantile({part:g}, {buckets(histogram, *labels, by=by)})"


def quantiles(histogram: str, *labels: str) -> tuple[Query, ...]:
    return tuple(
        Query(quantile(part, histogram, *labels), f"p{100 * part:g}") for part in QUANTILES
    )


def age(timestamp: str) -> str:
    """Seconds since the oldest of an instance's workers did it."""
    return f"time() - min by (instance) ({timestamp})"
