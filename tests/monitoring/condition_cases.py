"""What every other alert is shown: figures at which it fires, and some at which it must not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.monitoring.case import (
    ENDPOINT,
    GATEWAY,
    LAST_STEPS,
    TRITON,
    Case,
    P,
    Series,
    gauge,
    rising,
)
from transformer_serving.desk.monitoring.alerts import CONDITIONS, ENGINE_JOB, INFERENCE_JOB, Alert
from transformer_serving.desk.monitoring.restarts import RESTARTS

_WORKERS = [
    (
        f'{P}gateway_golden_round_timestamp_seconds{{instance="10.0.0.7:8080",pid="{pid}"}}',
        0.0,
        60.0,
    )
    for pid in (11, 12)
]


_PROOF = {"endpoint": "texts", "bundle": "7", **TRITON}
_OTHER = {"instance": "10.0.0.10:8003"}
_MODEL = {"model": "texts", "version": "7", **TRITON}
# By alert: the labels it fires with, the series at which it does, and those at which it must not.
_CONDITIONS: dict[str, tuple[dict[str, str], list[Series], dict[str, list[Series]]]] = {
    "EndpointNotReady": (
        ENDPOINT,
        [gauge("engine_ready", 0, bundle="7", **ENDPOINT, **TRITON)],
        {
            "another Triton serves it": [
                gauge("engine_ready", 0, bundle="7", **ENDPOINT, **TRITON),
                gauge("engine_ready", 1, bundle="7", **ENDPOINT, instance="10.0.0.10:8003"),
            ]
        },
    ),
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
    "GoldenRequestFails": (
        {**ENDPOINT, **GATEWAY},
        [
            gauge("gateway_golden_ok", 0, pid="11", **ENDPOINT, **GATEWAY),
            gauge("gateway_golden_ok", 1, pid="12", **ENDPOINT, **GATEWAY),
        ],
        {"all well": [gauge("gateway_golden_ok", 1, pid="11", **ENDPOINT, **GATEWAY)]},
    ),
    "GoldenRoundsStale": (
        GATEWAY,
        [_WORKERS[0], gauge("gateway_golden_round_timestamp_seconds", 0, pid="12", **GATEWAY)],
        {"all go round": _WORKERS},
    ),
    "ProofFailed": (
        _PROOF,
        [gauge("engine_proof", 1, state="failed", **_PROOF)],
        {
            "proven": [
                gauge("engine_proof", 0, state="failed", **_PROOF),
                gauge("engine_proof", 1, state="proven", **_PROOF),
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
        ],
        {
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
            gauge("generation_cache_reserved", 0.95, **_MODEL),
            gauge("generation_cache_use", 0.4, **_MODEL),
        ],
        {"some is free": [gauge("generation_cache_reserved", 0.85, **_MODEL)]},
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
        [rising("generation_rebuilt_total", 0.05, **_MODEL)],
        {"never": [gauge("generation_rebuilt_total", 3, **_MODEL)]},
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


# All of it at once: two workers of a container, a Triton, and a language model beside the texts.
HEALTHY = [
    *_WORKERS,
    gauge("up", 1, job=INFERENCE_JOB, **GATEWAY),
    gauge("up", 1, job=ENGINE_JOB, **TRITON),
    gauge("gateway_golden_ok", 1, pid="11", **ENDPOINT, **GATEWAY),
    gauge("gateway_golden_ok", 1, pid="12", **ENDPOINT, **GATEWAY),
    rising("gateway_refused_total", 50, code="malformed_body", **GATEWAY),
    rising("requests_total", 6_000, status="200", **ENDPOINT, **GATEWAY),
    rising("requests_total", 900, status="422", **ENDPOINT, **GATEWAY),
    rising("requests_total", 3, status="503", **ENDPOINT, **GATEWAY),
    rising("call_tokens_total", 90_000, **ENDPOINT, **GATEWAY),
    rising("call_padding_tokens_total", 9_000, **ENDPOINT, **GATEWAY),
    gauge("waiting_tokens", 900, **GATEWAY),
    gauge("waiting_tokens_limit", 800_000, **GATEWAY),
    rising("request_duration_seconds_count", 6_000, status="200", code="ok", **ENDPOINT),
    rising("request_duration_seconds_bucket", 5_999, code="ok", le="1.0", **ENDPOINT),
    rising("request_duration_seconds_count", 3, status="503", code="overloaded", **ENDPOINT),
    rising("gateway_last_sync_timestamp_seconds", 60, pid="11", **GATEWAY),
    gauge("gateway_generates_text", 1, endpoint="stories", pid="11", **GATEWAY),
    rising("first_token_seconds_count", 60, **ENDPOINT, **GATEWAY),
    rising("first_token_seconds_bucket", 59, le="2.5", **ENDPOINT, **GATEWAY),
    gauge("running_streams", 20, **ENDPOINT, **GATEWAY),
    gauge("running_streams_limit", 256, **GATEWAY),
    rising("cut_sequences_total", 5, reason="disconnect", **ENDPOINT, **GATEWAY),
    gauge("engine_ready", 1, bundle="7", **ENDPOINT, **TRITON),
    gauge("engine_proof", 1, state="proven", **_PROOF),
    gauge("engine_proof", 0, state="failed", **_PROOF),
    gauge("engine_load_failed", 0, kind="refused", **ENDPOINT, **TRITON),
    gauge("engine_triton_ready", 1, **TRITON),
    rising("engine_last_sync_timestamp_seconds", 60, **TRITON),
    gauge("generation_cache_use", 0.4, **_MODEL),
    gauge("generation_cache_reserved", 0.8, **_MODEL),
    gauge("generation_rebuilt_total", 0, **_MODEL),
    gauge("gateway_worker_restarts_total", 1, **GATEWAY),
    gauge("gateway_start_time_seconds", 1, pid="11", **GATEWAY),
    gauge("engine_triton_starts_total", 1, **TRITON),
    gauge("engine_start_time_seconds", 1, **TRITON),
]


def condition_cases() -> Iterator[Case]:
    for alert in (*CONDITIONS, *RESTARTS):
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


def load_cases(alert: Alert) -> Iterator[Case]:
    """What fails for reasons that pass is another alert than what the bundle is at fault for."""
    where = {**ENDPOINT, **TRITON}
    kinds = {True: ("away", "unreached"), False: ("refused", "missing", "died")}
    passes = "passing" in alert.labels
    for kind in kinds[passes]:
        failed = [
            # What is in service serves on.
            gauge("engine_ready", 1, bundle="7", **where),
            gauge("engine_load_failed", 1, kind=kind, **where),
            gauge("engine_load_failed", 0, kind=kinds[not passes][0], **where),
        ]
        yield Case(alert, kind, failed, where)
    loaded = gauge("engine_load_failed", 0, kind=kinds[passes][0], **where)
    yield Case(alert, "it was loaded", [loaded], None)
    for kind in kinds[not passes]:
        other = [gauge("engine_load_failed", 1, kind=kind, **where)]
        yield Case(alert, f"{kind}, which is the other's", other, None)
    if not passes:
        yield Case(
            alert, "its proof failed, which has an alert of its own",
            [gauge("engine_load_failed", 1, kind="refused", **where),
             gauge("engine_proof", 1, state="failed", **_PROOF)],
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


def restart_cases(alert: Alert) -> Iterator[Case]:
    """By their rates in steps of a minute, of which a quarter of an hour is the short look."""
    # The short window has three samples, of which two are another than before.
    backoff = Case(alert, "one in seven and a half minutes, as Kubernetes waits", (), None, 450)
    seldom = Case(alert, "three in an hour, each by itself", (), None, 1200)
    if alert.labels["part"] == "whole":
        for side, where in (("gateway", {"pid": "11", **GATEWAY}), ("engine", TRITON)):
            name, fires = f"{side}_start_time_seconds", {"instance": where["instance"]}
            yield Case(alert, f"another {side} each time", [rising(name, 60, **where)], fires)
            yield Case(alert, f"one {side}", [gauge(name, 60, **where)], None)
            yield replace(backoff, series=[rising(name, 450, **where)], fires=fires)
            yield replace(seldom, series=[rising(name, 1200, **where)])
        # Of a gateway without a container each worker is another process.
        pids = [gauge("gateway_start_time_seconds", 60, pid=str(at), **GATEWAY) for at in range(9)]
        yield Case(alert, "workers come and go", pids, None)
        return
    name, where = {
        "worker": ("gateway_worker_restarts_total", GATEWAY),
        "triton": ("engine_triton_starts_total", TRITON),
    }[alert.labels["part"]]
    yield Case(alert, "again and again", [rising(name, 0.25, **where)], where)
    yield Case(
        alert, "a few in a moment", [rising(name, 0.0, **where)], where, then=[3.5 / LAST_STEPS]
    )
    yield replace(backoff, series=[rising(name, 1, **where)], fires=where)
    yield Case(alert, "now and then", [rising(name, 0.05, **where)], None)


_OF_A_JOB = {
    "NoFigures": no_figures_cases,
    "LoadFailed": load_cases,
    "SyncStale": sync_cases,
    "PartRestarts": restart_cases,
}
