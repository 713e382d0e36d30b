"""What each alert is shown: figures at which it fires, others close by at which it must not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformer_serving.desk.monitoring.alerts import CONDITIONS, ENGINE_JOB, INFERENCE_JOB, Alert
from transformer_serving.desk.monitoring.objectives import OBJECTIVES
from transformer_serving.desk.monitoring.times import BURN_RATES, MINUTE

P = "transformer_serving_"
Series = tuple[str, float, float]
# A short window has five steps.
LAST_STEPS = 8
ENDPOINT = {"endpoint": "texts"}
GATEWAY, TRITON = {"instance": "10.0.0.7:8080"}, {"instance": "10.0.0.9:8003"}
_WORKERS = [
    (f'{P}gateway_golden_round_timestamp_seconds{{instance="10.0.0.7:8080",pid="{pid}"}}', 0, 60)
    for pid in (11, 12)
]


@dataclass(frozen=True)
class Case:
    """Series as (name and labels, first value, growth in each step of `step_s`).

    `fires` are the labels of the result with which the alert fires at the end, None where it is
    silent.
    """

    alert: Alert
    name: str
    series: Sequence[Series]
    fires: dict[str, str] | None
    step_s: float = MINUTE
    # How much each grows in its last steps, where that is something else.
    then: Sequence[float] = ()

    @property
    def at_s(self) -> float:
        """A little after the alert must have fired."""
        return self.alert.pace.window_s + self.alert.pace.hold_s + 3 * self.step_s

    def values(self) -> list[tuple[str, str]]:
        """Each series as promtool takes it."""
        steps = round(self.at_s / self.step_s) + 1
        first = steps - LAST_STEPS if self.then else steps
        rows = []
        for at, (name, value, step) in enumerate(self.series):
            text = f"{value:g}+{step:.10g}x{first}"
            if self.then:
                after = self.then[at]
                text += f" {value + first * step + after:.10g}+{after:.10g}x{LAST_STEPS - 1}"
            rows.append((name, text))
        return rows


def requests(bad: float, good: float) -> list[Series]:
    return [
        (f'{P}requests_total{{endpoint="texts",status="200"}}', 0, good),
        (f'{P}requests_total{{endpoint="texts",status="503"}}', 0, bad),
        # What the caller did wrong neither fails nor thins out what fails.
        (f'{P}requests_total{{endpoint="texts",status="400"}}', 0, 10 * good),
    ]


def first_tokens(bad: float, good: float) -> list[Series]:
    return [
        (f'{P}first_token_seconds_count{{endpoint="texts"}}', 0, bad + good),
        (f'{P}first_token_seconds_bucket{{endpoint="texts",le="2.5"}}', 0, good),
    ]


_OBJECTIVE_SERIES = {
    "RequestErrorBudgetBurn": requests,
    "FirstTokenBudgetBurn": first_tokens,
}


def objective_cases() -> Iterator[Case]:
    """For each burn rate: above it, below it, above it with few answers, and when it is over."""
    for one in OBJECTIVES:
        series = _OBJECTIVE_SERIES[one.alert]
        for alert, rate in zip(one.alerts(), BURN_RATES, strict=True):
            step_s = rate.pace.short_s / 5
            most = rate.factor * (1 - one.target)
            above, below = min(1.2 * most, 0.95), 0.8 * most
            few = 6 / (rate.pace.window_s / step_s)
            for name, rows, fires in (
                ("above", series(1e5 * above, 1e5 * (1 - above)), ENDPOINT),
                ("below", series(1e5 * below, 1e5 * (1 - below)), None),
                ("few", series(few, 0), None),
            ):
                yield Case(alert, name, rows, fires, step_s)
            # The long window still sees it; the short one does not.
            bad = min(2 * most, 0.95)
            then = [step for _, _, step in series(0, 1e5)]
            yield Case(alert, "over", series(1e5 * bad, 1e5 * (1 - bad)), None, step_s, then)


def gauge(name: str, value: float, **labels: str) -> Series:
    return rising(name, 0, value, **labels)


def rising(name: str, step: float, first: float = 0, **labels: str) -> Series:
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"{P}{name}{{{inside}}}" if name != "up" else f"up{{{inside}}}", first, step


_PROOF = {"endpoint": "texts", "bundle": "7", **TRITON}
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
        [*_WORKERS, gauge("waiting_tokens", 700_000, **GATEWAY)],
        {"two workers may have that": [*_WORKERS, gauge("waiting_tokens", 600_000, **GATEWAY)]},
    ),
    "WaitingTimeNearLimit": (
        GATEWAY,
        # 1,000 tokens a second.
        [
            gauge("waiting_tokens", 1_700, **GATEWAY),
            rising("call_tokens_total", 60_000, **ENDPOINT, **GATEWAY),
        ],
        {
            "less waits": [
                gauge("waiting_tokens", 1_500, **GATEWAY),
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
        [*_WORKERS, gauge("running_streams", 210, **ENDPOINT, **GATEWAY)],
        {"two workers may have that": [*_WORKERS, gauge("running_streams", 200, **GATEWAY)]},
    ),
    "CacheNearlyFull": (
        {"model": "texts", **TRITON},
        [gauge("generation_cache_use", 0.95, **_MODEL)],
        {"some is free": [gauge("generation_cache_use", 0.85, **_MODEL)]},
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
    "SyncStale": (
        TRITON,
        [
            gauge("engine_triton_ready", 1, **TRITON),
            gauge("engine_last_sync_age_seconds", 400, **TRITON),
        ],
        {
            "lately": [
                gauge("engine_triton_ready", 1, **TRITON),
                gauge("engine_last_sync_age_seconds", 200, **TRITON),
            ]
        },
    ),
}


def condition_cases() -> Iterator[Case]:
    for alert in CONDITIONS:
        if alert.name == "NoFigures":
            yield from no_figures_cases(alert)
            continue
        labels, series, quiet = _CONDITIONS[alert.name]
        yield Case(alert, "fires", series, labels)
        for name, rows in quiet.items():
            yield Case(alert, name, rows, None)
        if alert.name == "SyncStale":
            yield Case(alert, "never", [gauge("engine_triton_ready", 0, **TRITON)], TRITON)


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


def all_cases() -> list[Case]:
    return [*objective_cases(), *condition_cases()]
