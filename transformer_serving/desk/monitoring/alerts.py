"""The table of alerts: a row is one rule, whatever its windows are called in the end.

A page is for what callers feel now and a person must end; all else is a ticket. `$name` in an
expression is filled in by rules.py: `$window` and `$short` from the row's pace, `$seconds` by the
window in seconds, and the name of a setting of the inference container by its value. Thresholds in
seconds are the product's own pace (a round of golden requests every 15 s); no scale divides them.

Tested by tests/monitoring/test_rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from transformer_serving.contract.errors import FAULTS, KINDS
from transformer_serving.desk.monitoring.times import (
    GOES_ON,
    GONE,
    HABIT,
    HAPPENED,
    PAGE,
    STAYS,
    TICKET,
    WAITS,
    Pace,
)

# What Prometheus calls the two kinds of pages: prometheus.yaml names its jobs so.
INFERENCE_JOB, ENGINE_JOB = "transformer-serving", "transformer-serving-engine"
_ENGINE_FAILED = KINDS["engine_failed"].status
# So few bad answers are no reason to call anybody, whatever share they are of few.
LEAST_BAD = 10
# Of the tokens that may wait: nobody gets all. One busy endpoint's requests have half of them at
# most, and those with many tokens a third (preprocess/queue/admission.py).
MANY_WAIT = 0.3
# Of the time that a request may wait: of what is estimated for it some is kept as a reserve there,
# so that no more than 78 % of it comes to be used.
LONG_WAIT = 0.6
# Calls, by their tokens, of which none waits: the one that runs, as their sizes differ.
_NONE_WAITS = 1.5
_ENGINE_SYNC = "max by (instance) (transformer_serving_engine_last_sync_timestamp_seconds)"
# Seconds for each minute between two looks at the control plane: two in a row have failed.
_MISSED = 150
_NOBODY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Alert:
    """One rule; `labels` are those beside its severity, `summary` may name labels of the result."""

    name: str
    group: str
    expression: str
    pace: Pace
    severity: str
    summary: str
    labels: Mapping[str, str] = field(default_factory=lambda: _NOBODY, hash=False)

    @property
    def runbook(self) -> str:
        """The page's name: RequestErrorBudgetBurn's is request-error-budget-burn.md."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", self.name).lower() + ".md"


# What stands on a line of its own in rules.yaml.
AND = "\nand "


def share(bad: str, eligible: str) -> str:
    return f"({bad}) / ({eligible})"


def enough(bad: str) -> str:
    """That so many came in the window; `bad` is their rate over it."""
    return f"({bad}) * $seconds >= {LEAST_BAD}"


_FAILED = (
    f'sum by (endpoint) (rate(transformer_serving_requests_total{{status="{_ENGINE_FAILED}"}}'
    "[$window]))"
)
_CUT = (
    "sum by (endpoint) "
    '(rate(transformer_serving_cut_sequences_total{reason!="disconnect"}[$window]))'
)
_BEGUN = "sum by (endpoint) (rate(transformer_serving_first_token_seconds_count[$window]))"
_ELIGIBLE = (
    'sum by (endpoint) (rate(transformer_serving_requests_total{status=~"200|5.."}[$window]))'
)
_PADDING = "sum by (endpoint) (rate(transformer_serving_call_padding_tokens_total[$window]))"
_TOKENS = "sum by (endpoint) (rate(transformer_serving_call_tokens_total[$window]))"

_WAITING = "sum by (instance) (avg_over_time(transformer_serving_waiting_tokens[$window]))"
_PACE = "sum by (instance) (rate(transformer_serving_call_tokens_total[$window]))"
_CALLS = "sum by (instance) (rate(transformer_serving_call_texts_count[$window]))"

_SATURATION = (
    Alert(
        "WaitingTokensNearLimit",
        "saturation",
        "sum by (instance) (transformer_serving_waiting_tokens) "
        f"/ sum by (instance) (transformer_serving_waiting_tokens_limit) > {MANY_WAIT}",
        GOES_ON,
        TICKET,
        f"Over {100 * MANY_WAIT:g} % of the tokens that may wait in "
        "{{ $labels.instance }} do, and one endpoint gets a third to a half.",
    ),
    Alert(
        "WaitingTimeNearLimit",
        "saturation",
        # What is computed counts, too: of long calls, one after the other, nothing waits.
        f"{_WAITING} / {_PACE} > {LONG_WAIT} * $TRANSFORMER_SERVING_MAX_WAIT_S\n"
        f"unless {_WAITING} * {_CALLS} / {_PACE} <= {_NONE_WAITS}",
        WAITS,
        TICKET,
        f"What waits in {{{{ $labels.instance }}}} takes over {100 * LONG_WAIT:g} % of the time "
        "that a request may wait.",
    ),
    Alert(
        "StreamsNearLimit",
        "saturation",
        "sum by (instance) (transformer_serving_running_streams) "
        "/ sum by (instance) (transformer_serving_running_streams_limit) > 0.8",
        GOES_ON,
        TICKET,
        "Over 80 % of the sequences that may run in {{ $labels.instance }} do.",
    ),
    Alert(
        "CacheNearlyFull",
        "saturation",
        # Calls wait for what is reserved, of which short sequences use little.
        "max by (model, instance) (transformer_serving_generation_cache_reserved) > 0.9",
        GOES_ON,
        TICKET,
        "Over 90 % of the cache of {{ $labels.model }} on {{ $labels.instance }} is reserved.",
    ),
    Alert(
        "GatewayRefuses",
        "saturation",
        "sum by (instance, code) "
        f'(rate(transformer_serving_gateway_refused_total{{code=~"{"|".join(FAULTS)}"}}[$window])) '
        "> 0.1",
        GOES_ON,
        TICKET,
        "The gateway of {{ $labels.instance }} itself refuses requests as {{ $labels.code }}.",
    ),
)

_ENGINE = (
    Alert(
        "EngineFailures",
        "engine",
        f"{share(_FAILED, _ELIGIBLE)} > 0.01{AND}{enough(_FAILED)}",
        GOES_ON,
        TICKET,
        "The engine fails on over 1 % of the requests of {{ $labels.endpoint }}.",
    ),
    Alert(
        "EngineRebuilt",
        "engine",
        "sum by (model, instance) "
        "(increase(transformer_serving_generation_rebuilt_total[$window])) > 0",
        HAPPENED,
        TICKET,
        "The engine of {{ $labels.model }} on {{ $labels.instance }} was built again after a "
        "fault.",
    ),
    Alert(
        "SequencesCutShort",
        "engine",
        f"{share(_CUT, _BEGUN)} > 0.01{AND}{enough(_CUT)}",
        GOES_ON,
        TICKET,
        "Of a hundred requests to {{ $labels.endpoint }} that began to be answered, over one "
        "sequence ended with an error.",
    ),
    Alert(
        "TritonNotReady",
        "engine",
        "max by (instance) (transformer_serving_engine_triton_ready) == 0",
        GONE,
        TICKET,
        "The Triton of {{ $labels.instance }} does not answer its controller.",
    ),
    Alert(
        "PaddingWaste",
        "engine",
        f"{share(_PADDING, f'{_PADDING} + {_TOKENS}')} > 0.4{AND}{_TOKENS} > 100",
        HABIT,
        TICKET,
        "Over 40 % of what the engine computes for {{ $labels.endpoint }} is padding.",
    ),
)

_FIGURES = (
    Alert(
        "NoFigures",
        "figures",
        f'absent(up{{job="{INFERENCE_JOB}"}} == 1)',
        GONE,
        PAGE,
        "No inference container gives figures: none runs, or none can be asked.",
        {"job": INFERENCE_JOB},
    ),
    Alert(
        "NoFigures",
        "figures",
        f'absent(up{{job="{ENGINE_JOB}"}} == 1)',
        GONE,
        TICKET,
        "No Triton container gives figures: none runs, or none can be asked.",
        {"job": ENGINE_JOB},
    ),
    Alert(
        "ScrapeFails",
        "figures",
        f'up{{job=~"{INFERENCE_JOB}|{ENGINE_JOB}"}} == 0',
        STAYS,
        TICKET,
        "{{ $labels.instance }} gives no figures.",
    ),
    Alert(
        "SyncStale",
        "figures",
        f"time() - {_ENGINE_SYNC} > 300 > {_MISSED} * $CLEARML_TRITON_POLL_FREQ\n"
        f"or (max by (instance) (transformer_serving_engine_triton_ready) unless {_ENGINE_SYNC})",
        STAYS,
        TICKET,
        "The control plane has not answered the controller of {{ $labels.instance }} for minutes.",
        {"job": ENGINE_JOB},
    ),
    Alert(
        "SyncStale",
        "figures",
        "time() - min by (instance) (transformer_serving_gateway_last_sync_timestamp_seconds) "
        f"> 900 > {_MISSED} * $CLEARML_SERVING_POLL_FREQ",
        STAYS,
        TICKET,
        "The control plane has not answered a worker of {{ $labels.instance }} for a quarter of an "
        "hour or more.",
        {"job": INFERENCE_JOB},
    ),
)

CONDITIONS = (*_SATURATION, *_ENGINE, *_FIGURES)
