"""Rows of the table of alerts for parts that end and are started again and again.

Tested by tests/monitoring/test_rules.py.
"""

from __future__ import annotations

from transformer_serving.desk.monitoring.alerts import Alert
from transformer_serving.desk.monitoring.times import AGAIN, TICKET

# In one window. What lives for a moment each time resets whatever must hold for a while.
_MANY_STARTS = 3


def _starts(side: str) -> str:
    """How often another process than before gave the page; a worker's pid says nothing of it."""
    since = f"max by (instance) (transformer_serving_{side}_start_time_seconds)"
    return f"changes({since}[$window:]) >= {_MANY_STARTS}"


RESTARTS = (
    Alert(
        "PartRestarts",
        "restarts",
        "sum by (instance) (increase(transformer_serving_gateway_worker_restarts_total[$window])) "
        f">= {_MANY_STARTS}",
        AGAIN,
        TICKET,
        "Workers of {{ $labels.instance }} end again and again.",
        {"part": "worker"},
    ),
    Alert(
        "PartRestarts",
        "restarts",
        "sum by (instance) (increase(transformer_serving_engine_triton_starts_total[$window])) "
        f">= {_MANY_STARTS}",
        AGAIN,
        TICKET,
        "The Triton of {{ $labels.instance }} is away and comes back again and again.",
        {"part": "triton"},
    ),
    Alert(
        "PartRestarts",
        "restarts",
        f"{_starts('gateway')}\nor {_starts('engine')}",
        AGAIN,
        TICKET,
        "What gives the figures of {{ $labels.instance }}, its gateway or controller, is started "
        "again and again.",
        {"part": "whole"},
    ),
)
