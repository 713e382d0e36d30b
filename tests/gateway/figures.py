"""A page of figures, read."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
PREFIX = "transformer_serving_"


def read(text: str) -> Samples:
    return {
        (sample.name.removeprefix(PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(PREFIX)
    }


def of(figures: Samples, name: str, **labels: str) -> float:
    return figures.get((name, frozenset(labels.items())), 0)


def durations(seen: Samples, endpoint: str) -> dict[tuple[str, str], float]:
    """How many were timed, by status and code."""
    rows = ((name, dict(labels), value) for (name, labels), value in seen.items())
    return {
        (labels["status"], labels["code"]): value
        for name, labels, value in rows
        if name == "request_duration_seconds_count" and labels["endpoint"] == endpoint and value
    }
