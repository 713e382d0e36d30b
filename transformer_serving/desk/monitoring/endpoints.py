"""Rows of the table of alerts for endpoints: whether each is served, and answers as it should.

Tested by tests/monitoring/test_rules.py.
"""

from __future__ import annotations

from transformer_serving.desk.monitoring.alerts import Alert
from transformer_serving.desk.monitoring.times import (
    GONE,
    LASTS,
    LOST,
    NOT_YET,
    PAGE,
    STAYS,
    TICKET,
)
from transformer_serving.engine.controller.records import PASSING

_READY = "max by (endpoint) (transformer_serving_engine_ready)"
# Nobody is woken for what has not been there for callers yet.
_SERVED = "max by (endpoint) (max_over_time(transformer_serving_engine_ready[$window]))"
_GOLDEN = "min by (endpoint, instance) (transformer_serving_gateway_golden_ok)"
_LOADS = "transformer_serving_engine_load_failed"
# Kinds of failed loads that the next try may mend.
_PASSING = "|".join(sorted(kind.value for kind in PASSING))

ENDPOINTS = (
    Alert(
        "EndpointNotReady",
        "endpoints",
        f"{_READY} == 0\nand on (endpoint) {_SERVED} == 1",
        LOST,
        PAGE,
        "No Triton serves {{ $labels.endpoint }}.",
    ),
    # A first deploy's, or a rollout's next version before callers are led to it.
    Alert(
        "EndpointNotReady",
        "endpoints",
        f"{_READY} == 0\nunless on (endpoint) {_SERVED} == 1",
        NOT_YET,
        TICKET,
        "No Triton serves {{ $labels.endpoint }}, nor did one within a week.",
    ),
    # An endpoint that --filter keeps from a Triton has no row there.
    Alert(
        "TritonLacksEndpoint",
        "endpoints",
        "max by (endpoint, instance) (transformer_serving_engine_ready) == 0\n"
        "and on (endpoint) max by (endpoint) (transformer_serving_engine_ready) == 1\n"
        "and on (instance) max by (instance) (transformer_serving_engine_triton_ready) == 1",
        LASTS,
        TICKET,
        "The Triton of {{ $labels.instance }} does not serve {{ $labels.endpoint }}, which others "
        "do.",
    ),
    Alert(
        "GoldenRequestFails",
        "endpoints",
        # Also where no Triton's figures are read.
        f"{_GOLDEN} == 0\nunless on (endpoint) {_SERVED} == 0",
        LOST,
        PAGE,
        "{{ $labels.endpoint }} answers its golden request wrongly or not at all, asked by a "
        "worker of {{ $labels.instance }}.",
    ),
    Alert(
        "GoldenRequestFails",
        "endpoints",
        f"{_GOLDEN} == 0\nand on (endpoint) {_SERVED} == 0",
        NOT_YET,
        TICKET,
        "{{ $labels.endpoint }}, which no Triton served within a week, does not answer its golden "
        "request, asked by a worker of {{ $labels.instance }}.",
    ),
    Alert(
        "GoldenRoundsStale",
        "endpoints",
        "time() - min by (instance) (transformer_serving_gateway_golden_round_timestamp_seconds) "
        "> 60",
        GONE,
        TICKET,
        "A worker of {{ $labels.instance }} has asked no golden requests for over a minute.",
    ),
    Alert(
        "ProofFailed",
        "endpoints",
        'max by (endpoint, bundle, instance) (transformer_serving_engine_proof{state="failed"}) '
        "== 1",
        GONE,
        TICKET,
        "Bundle {{ $labels.bundle }} of {{ $labels.endpoint }} answers otherwise than its "
        "reference on {{ $labels.instance }} and is not served there.",
    ),
    Alert(
        "LoadFailed",
        "endpoints",
        f'max by (endpoint, instance) ({_LOADS}{{kind!~"{_PASSING}"}}) == 1\n'
        "unless on (endpoint, instance) "
        'max by (endpoint, instance) (transformer_serving_engine_proof{state="failed"}) == 1',
        STAYS,
        TICKET,
        "A bundle of {{ $labels.endpoint }} cannot be loaded on {{ $labels.instance }}.",
    ),
    # What failed is told until the next try has ended, and a load may take many minutes.
    Alert(
        "LoadFailed",
        "endpoints",
        f'max by (endpoint, instance) ({_LOADS}{{kind=~"{_PASSING}"}}) == 1',
        LASTS,
        TICKET,
        "A bundle of {{ $labels.endpoint }} is still not loaded on {{ $labels.instance }}, after "
        "its store, the disk or Triton was away.",
        {"passing": "true"},
    ),
)
