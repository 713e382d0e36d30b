"""What every other alert is shown: figures at which it fires, and some at which it must not."""

from __future__ import annotations

from collections.abc import Iterator

from tests.monitoring.case import (
    ENDPOINT,
    GATEWAY,
    MODEL,
    PROOF,
    TRITON,
    WORKERS,
    Case,
    Series,
    gauge,
    rising,
)
from tests.monitoring.endpoint_cases import golden_cases, load_cases, not_ready_cases
from tests.monitoring.restart_cases import restart_cases
from transformer_serving.desk.monitoring.alerts import CONDITIONS, ENGINE_JOB, INFERENCE_JOB, Alert
from transformer_serving.desk.monitoring.endpoints import ENDPOINTS
from transformer_serving.desk.monitoring.restarts import RESTARTS

_OTHER = {"instance": "10.0.0.10:8003"}
# By alert: the labels it fires with, the series at which it does, and those at which it must not.
_CONDITIONS: dict[str, tuple[dict[str, str], list[Series], dict[str, list[Series]]]] = {
    "TritonLacksEndpoint": (
        {**ENDPOINT, **TRITON},
        [
            gauge("engine_ready", 0, bundle="7", **ENDPOINT, **TRITON),
            gauge("engine_triton_ready", 1, **TRITON),
            gauge("engine_ready", 1, bundle="7", **ENDPOINT, **_OTHER),
            gauge("engine_triton_ready", 1, **_OTHER),
        ],
        {
            "none serves it, which pages": [
                gauge("engine_ready", 0, bundle="7", **ENDPOINT, **TRITON),
                gauge("engine_triton_ready", 1, **TRITON),
                gauge("engine_ready", 0, bundle="7", **ENDPOINT, **_OTHER),
                gauge("engine_triton_ready", 1, **_OTHER),
            ],
            "it is placed on the other by design": [
                gauge("engine_ready", 1, bundle="7", endpoint="words", **TRITON),
                gauge("engine_triton_ready", 1, **TRITON),
                gauge("engine_ready", 1, bundle="7", **ENDPOINT, **_OTHER),
                gauge("engine_triton_ready", 1, **_OTHER),
            ],
            "its Triton is away, which has an alert of its own": [
                gauge("engine_ready", 0, bundle="7", **ENDPOINT, **TRITON),
                gauge("engine_triton_ready", 0, **TRITON),
                gauge("engine_ready", 1, bundle="7", **ENDPOINT, **_OTHER),
                gauge("engine_triton_ready", 1, **_OTHER),
            ],
        },
    ),
    "GoldenRoundsStale": (
        GATEWAY,
        [WORKERS[0], gauge("gateway_golden_round_timestamp_seconds", 0, pid="12", **GATEWAY)],
        {"all go round": WORKERS},
    ),
    "ProofFailed": (
        PROOF,
        [gauge("engine_proof", 1, state="failed", **PROOF)],
        {
            "proven": [
                gauge("engine_proof", 0, state="failed", **PROOF),
                gauge("engine_proof", 1, state="proven", **PROOF),
            ]
        },
    ),
    "WaitingTokensNearLimit": (
        GATEWAY,
        [
            gauge("waiting_tokens_limit", 800_000, **GATEWAY),
            gauge("waiting_tokens", 260_000, **GATEWAY),
        ],
        {
            "that many may": [
                gauge("waiting_tokens_limit", 800_000, **GATEWAY),
                gauge("waiting_tokens", 220_000, **GATEWAY),
            ]
        },
    ),
    "WaitingTimeNearLimit": (
        GATEWAY,
        # 1,000 tokens a second.
        [
            gauge("waiting_tokens", 1_300, **GATEWAY),
            rising("call_tokens_total", 60_000, **ENDPOINT, **GATEWAY),
            rising("call_texts_count", 600, **ENDPOINT, **GATEWAY),
        ],
        {
            "one long call after the other": [
                gauge("waiting_tokens", 4_000, **GATEWAY),
                rising("call_tokens_total", 160_000, **ENDPOINT, **GATEWAY),
                rising("call_texts_count", 40, **ENDPOINT, **GATEWAY),
            ],
            "less waits": [
                gauge("waiting_tokens", 1_100, **GATEWAY),
                rising("call_tokens_total", 60_000, **ENDPOINT, **GATEWAY),
            ],
            "nobody asks": [
                gauge("waiting_tokens", 0, **GATEWAY),
                gauge("call_tokens_total", 60_000, **ENDPOINT, **GATEWAY),
            ],
        },
    ),
    "StreamsNearLimit": (
        GATEWAY,
        [
            gauge("running_streams_limit", 256, **GATEWAY),
            gauge("running_streams", 210, **ENDPOINT, **GATEWAY),
        ],
        {
            "that many may": [
                gauge("running_streams_limit", 256, **GATEWAY),
                gauge("running_streams", 200, **ENDPOINT, **GATEWAY),
            ]
        },
    ),
    "CacheNearlyFull": (
        {"model": "texts", **TRITON},
        [
            gauge("generation_cache_reserved", 0.95, **MODEL),
            gauge("generation_cache_use", 0.4, **MODEL),
        ],
        {"some is free": [gauge("generation_cache_reserved", 0.85, **MODEL)]},
    ),
    "GatewayRefuses": (
        {"code": "overloaded", **GATEWAY},
        [rising("gateway_refused_total", 12, code="overloaded", **GATEWAY)],
        {
            "now and then": [rising("gateway_refused_total", 3, code="overloaded", **GATEWAY)],
            "the caller's fault": [rising("gateway_refused_total", 99, code="too_large")],
        },
    ),
    "EngineFailures": (
        ENDPOINT,
        [
            rising("requests_total", 20, status="502", **ENDPOINT),
            rising("requests_total", 980, status="200", **ENDPOINT),
        ],
        {
            "a small share": [
                rising("requests_total", 8, status="502", **ENDPOINT),
                rising("requests_total", 992, status="200", **ENDPOINT),
            ],
            "few": [rising("requests_total", 0.4, status="502", **ENDPOINT)],
        },
    ),
    "EngineRebuilt": (
        {"model": "texts", **TRITON},
        [rising("generation_rebuilt_total", 0.05, **MODEL)],
        {"never": [gauge("generation_rebuilt_total", 3, **MODEL)]},
    ),
    "SequencesCutShort": (
        ENDPOINT,
        [
            rising("cut_sequences_total", 2, reason="unavailable", **ENDPOINT),
            rising("first_token_seconds_count", 100, **ENDPOINT),
        ],
        {
            "callers left": [
                rising("cut_sequences_total", 50, reason="disconnect", **ENDPOINT),
                rising("first_token_seconds_count", 100, **ENDPOINT),
            ],
            "few": [
                rising("cut_sequences_total", 0.4, reason="unavailable", **ENDPOINT),
                rising("first_token_seconds_count", 1, **ENDPOINT),
            ],
        },
    ),
    "TritonNotReady": (
        TRITON,
        [gauge("engine_triton_ready", 0, **TRITON)],
        {"it answers": [gauge("engine_triton_ready", 1, **TRITON)]},
    ),
    "PaddingWaste": (
        ENDPOINT,
        [
            rising("call_tokens_total", 60_000, **ENDPOINT),
            rising("call_padding_tokens_total", 50_000, **ENDPOINT),
        ],
        {
            "less padding": [
                rising("call_tokens_total", 60_000, **ENDPOINT),
                rising("call_padding_tokens_total", 30_000, **ENDPOINT),
            ],
            "hardly anything computed": [
                rising("call_tokens_total", 3_000, **ENDPOINT),
                rising("call_padding_tokens_total", 9_000, **ENDPOINT),
            ],
        },
    ),
    "ScrapeFails": (
        {"job": INFERENCE_JOB, **GATEWAY},
        [gauge("up", 0, job=INFERENCE_JOB, **GATEWAY)],
        {
            "it answers": [gauge("up", 1, job=INFERENCE_JOB, **GATEWAY)],
            "another's": [gauge("up", 0, job="clearml-serving-statistics", **GATEWAY)],
        },
    ),
}


def condition_cases() -> Iterator[Case]:
    for alert in (*ENDPOINTS, *CONDITIONS, *RESTARTS):
        if alert.name in _OF_A_JOB:
            yield from _OF_A_JOB[alert.name](alert)
            continue
        labels, series, quiet = _CONDITIONS[alert.name]
        yield Case(alert, "fires", series, labels)
        for name, rows in quiet.items():
            yield Case(alert, name, rows, None)


def no_figures_cases(alert: Alert) -> Iterator[Case]:
    other = {INFERENCE_JOB: ENGINE_JOB, ENGINE_JOB: INFERENCE_JOB}[alert.labels["job"]]
    up = gauge("up", 1, job=other, **GATEWAY)
    yield Case(alert, "none is there", [up], {})
    yield Case(alert, "none answers", [up, gauge("up", 0, job=alert.labels["job"])], {})
    yield Case(
        alert, "one answers",
        [gauge("up", 1, job=alert.labels["job"], instance="a"),
         gauge("up", 0, job=alert.labels["job"], instance="b")],
        None,
    )  # fmt: skip


def sync_cases(alert: Alert) -> Iterator[Case]:
    side, where = {
        ENGINE_JOB: ("engine", TRITON),
        INFERENCE_JOB: ("gateway", {"pid": "11", **GATEWAY}),
    }[alert.labels["job"]]
    fires = {"instance": where["instance"]}
    name, ready = f"{side}_last_sync_timestamp_seconds", gauge("engine_triton_ready", 1, **TRITON)
    # Unix time begins with a case; more than any bound passes before its end.
    yield Case(alert, "long ago", [gauge(name, -900, **where), ready], fires)
    yield Case(
        alert,
        "lately",
        [
            rising(name, 60, **where),
            rising("engine_last_sync_timestamp_seconds", 60, **TRITON),
            ready,
        ],
        None,
    )
    if side == "engine":
        yield Case(alert, "never", [gauge("engine_triton_ready", 0, **TRITON)], TRITON)


_OF_A_JOB = {
    "NoFigures": no_figures_cases,
    "EndpointNotReady": not_ready_cases,
    "GoldenRequestFails": golden_cases,
    "LoadFailed": load_cases,
    "SyncStale": sync_cases,
    "PartRestarts": restart_cases,
}
