"""What a server of ours says of itself at /metrics: time by stage, texts a call, padding."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

_PREFIX = "transformer_serving_"
_SUMS = (
    "call_tokens_total", "call_padding_tokens_total", "stage_seconds_sum", "stage_seconds_count",
    "call_texts_sum", "call_texts_count",
)  # fmt: skip

# Sums by sample and stage; the stage is empty for what has none.
Sums = Mapping[tuple[str, str], float]


def read_sums(base: str) -> Sums:
    """The sums over all endpoints and workers; empty where the server has no such figures."""
    try:
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
            return parse(answer.read().decode("utf-8", "replace"))
    except OSError:
        return {}


def parse(text: str) -> Sums:
    sums: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix(_PREFIX)
            if name in _SUMS:
                key = (name, sample.labels.get("stage", ""))
                sums[key] = sums.get(key, 0.0) + sample.value
    return sums


def padding_share(before: Sums, after: Sums) -> float | None:
    """Padding among all tokens that went to the engine in between."""
    tokens = _grown(before, after, ("call_tokens_total", ""))
    padding = _grown(before, after, ("call_padding_tokens_total", ""))
    return padding / (tokens + padding) if tokens + padding else None


def texts_a_call(before: Sums, after: Sums) -> float | None:
    calls = _grown(before, after, ("call_texts_count", ""))
    return _grown(before, after, ("call_texts_sum", "")) / calls if calls else None


def stage_ms(before: Sums, after: Sums) -> dict[str, float]:
    """Milliseconds a request spent in each stage in between, on average."""
    found: dict[str, float] = {}
    for kind, stage in after:
        if kind != "stage_seconds_sum":
            continue
        requests = _grown(before, after, ("stage_seconds_count", stage))
        if requests:
            found[stage] = 1e3 * _grown(before, after, (kind, stage)) / requests
    return found


def _grown(before: Sums, after: Sums, key: tuple[str, str]) -> float:
    return after.get(key, 0.0) - before.get(key, 0.0)
