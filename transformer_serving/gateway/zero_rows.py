"""Rows of 0 for answers that an endpoint has not given yet.

Prometheus takes a counter's first value for no growth: the first faults, as many as came between
two scrapes, would be in no rate. The rows are made for the page alone, so that no worker's file has
them and no request pays for them.

Tested by tests/gateway/test_metrics.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from transformer_serving.contract.errors import FAULTS, KINDS
from transformer_serving.contract.worker.durations import BOUNDS, HELP, NAME, OK

REFUSED = "transformer_serving_gateway_refused"
REFUSED_HELP = "Requests that the gateway refused."
# By code the status, as a row of the durations has both.
_ANSWERS = {OK: "200", **{code: str(KINDS[code].status) for code in FAULTS}}
# The one fault for which the gateway itself refuses: too many bytes of bodies.
_REFUSALS = ("overloaded",)
_LE = [*(floatToGoString(bound) for bound in BOUNDS), "+Inf"]


def with_zero_rows(metrics: Iterable[Metric], endpoints: Collection[str]) -> Iterator[Metric]:
    """The metrics, with rows of these endpoints where there are none."""
    missing = {
        NAME: Metric(NAME, HELP, "histogram"),
        REFUSED: Metric(REFUSED, REFUSED_HELP, "counter"),
    }
    for metric in metrics:
        yield _completed(metric, endpoints)
        missing.pop(metric.name, None)
    if endpoints:
        for metric in missing.values():
            yield _completed(metric, endpoints)


def _completed(metric: Metric, endpoints: Collection[str]) -> Metric:
    if metric.name == NAME:
        for labels in _absent(metric, f"{NAME}_count", endpoints, _ANSWERS):
            status = {**labels, "status": _ANSWERS[labels["code"]]}
            metric.samples += [Sample(f"{NAME}_bucket", {**status, "le": le}, 0.0) for le in _LE]
            metric.samples += [Sample(f"{NAME}_{part}", status, 0.0) for part in ("sum", "count")]
    elif metric.name == REFUSED:
        for labels in _absent(metric, f"{REFUSED}_total", ("", *endpoints), _REFUSALS):
            metric.samples.append(Sample(f"{REFUSED}_total", labels, 0.0))
    return metric


def _absent(
    metric: Metric, name: str, endpoints: Iterable[str], codes: Collection[str]
) -> Iterator[dict[str, str]]:
    """The pairs of endpoint and code that have no row of this name."""
    there = {
        (row.labels["endpoint"], row.labels["code"]) for row in metric.samples if row.name == name
    }
    for endpoint in endpoints:
        for code in codes:
            if (endpoint, code) not in there:
                yield {"endpoint": endpoint, "code": code}
