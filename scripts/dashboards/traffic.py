"""Panels that the service and one endpoint both have; `chosen` says of which requests they are."""

from __future__ import annotations

from preprocess.stats import STAGES
from scripts.dashboards.expressions import (
    REQUESTS,
    P,
    buckets,
    mean,
    of,
    quantiles,
    rate,
    share,
    total,
)
from scripts.dashboards.panel import Kind, Panel, Query

_EACH = "{{endpoint}}"
# Not those for none: a path that is nobody's.
_NAMED = 'endpoint!=""'
_OK = 'code="ok"'
_BAD = 'status=~"5.."'


def answers(chosen: str) -> tuple[Panel, ...]:
    return (*_outcomes(chosen), *_times(chosen))


def _outcomes(chosen: str) -> tuple[Panel, ...]:
    every = rate(of(f"{REQUESTS}_count", chosen))
    failed = rate(of(f"{REQUESTS}_count", chosen, 'code!="ok"'))
    return (
        Panel(
            "Requests by status",
            Kind.STACKED,
            "reqps",
            8,
            "Every answer, whoever gave it. 499: the caller left.",
            (Query(rate(of(f"{REQUESTS}_count", chosen), "status"), "{{status}}"),),
        ),
        Panel(
            "Errors by code",
            Kind.LINES,
            "reqps",
            8,
            "Codes of docs/errors.md; `other` where another's code answers its own.",
            (
                Query(
                    rate(of(f"{REQUESTS}_count", chosen, 'code!="ok"'), "code"),
                    "{{code}}",
                ),
                Query(f"({failed}) or 0 * ({every})", "all"),
            ),
        ),
        Panel(
            "Share of answers that failed",
            Kind.LINES,
            "percentunit",
            8,
            "Statuses of 500 and above, of all answers.",
            (
                Query(
                    share(
                        rate(of(f"{REQUESTS}_count", chosen, _NAMED, _BAD), "endpoint"),
                        rate(of(f"{REQUESTS}_count", chosen, _NAMED), "endpoint"),
                    ),
                    _EACH,
                ),
            ),
        ),
    )


def _times(chosen: str) -> tuple[Panel, ...]:
    return (
        Panel(
            "Latency",
            Kind.LINES,
            "s",
            8,
            "From a request's head to its answer's last byte, of a stream to its last event. "
            "Answers without an error.",
            quantiles(REQUESTS, chosen, _OK),
        ),
        Panel(
            "Latency, all of it",
            Kind.HEATMAP,
            "s",
            8,
            "How many answers without an error took how long.",
            (Query(buckets(REQUESTS, chosen, _OK), "{{le}}"),),
        ),
        Panel(
            "Latency by stage",
            Kind.STACKED,
            "s",
            8,
            "The mean of each stage, added up; answers of 200. docs/observability.md says what a "
            "stage is.",
            tuple(
                Query(mean(f"{P}stage_seconds", chosen, f'stage="{stage}"'), stage)
                for stage in STAGES
            ),
        ),
    )


def work(chosen: str) -> tuple[Panel, ...]:
    return (*_throughput(chosen), *_calls(chosen))


def _throughput(chosen: str) -> tuple[Panel, ...]:
    return (
        Panel(
            "Texts a second",
            Kind.LINES,
            "short",
            8,
            "Texts that were answered.",
            (Query(rate(of(f"{P}texts_total", chosen), "endpoint"), _EACH),),
        ),
        Panel(
            "Tokens a second",
            Kind.LINES,
            "short",
            8,
            "Their tokens, special ones included.",
            (Query(rate(of(f"{P}tokens_total", chosen), "endpoint"), _EACH),),
        ),
        Panel(
            "Requests in flight",
            Kind.LINES,
            "short",
            8,
            "Whose answer has not ended, of all workers.",
            (
                Query(
                    total(of(f"{P}gateway_requests_in_flight", chosen, _NAMED), "endpoint"), _EACH
                ),
            ),
        ),
    )


def _calls(chosen: str) -> tuple[Panel, ...]:
    padding, sent = (
        rate(of(f"{P}call_{what}_total", chosen), "endpoint")
        for what in ("padding_tokens", "tokens")
    )
    return (
        Panel(
            "Texts a call",
            Kind.LINES,
            "short",
            8,
            "How many texts go to the engine at once, in the mean.",
            (Query(mean(f"{P}call_texts", chosen, by="endpoint"), _EACH),),
        ),
        Panel(
            "Padding",
            Kind.LINES,
            "percentunit",
            8,
            "Of what the engine computes, the share that is padding.",
            (Query(share(padding, f"({padding}) + ({sent})"), _EACH),),
        ),
        Panel(
            "Requests given up",
            Kind.LINES,
            "reqps",
            8,
            "In the queue or while computed, as the deadline passed or the caller closed its "
            "connection.",
            (
                Query(
                    rate(of(f"{P}abandoned_requests_total", chosen), "endpoint, reason"),
                    "{{endpoint}}: {{reason}}",
                ),
            ),
        ),
    )
