"""Rows of the table of alerts for parts that end and are started again and again.

Tested by tests/monitoring/test_rules.py.
"""

from __future__ import annotations

from transformer_serving.desk.monitoring.alerts import Alert
from transformer_serving.desk.monitoring.times import AGAIN, TICKET

# In the short window, and in the long one: Kubernetes waits up to 5 minutes before the next start
# of what lived for less than 10. What lives for a moment each time resets whatever must hold for a
# while.
_SOON, _IN_ALL = 3, 4


def _many(over: str) -> str:
    """`over` is how many there were in $window."""
    return f"{over.replace('$window', '$short')} >= {_SOON}\nor {over} >= {_IN_ALL}"


def _ends(counter: str) -> str:
    return _many(f"sum by (instance) (increase(transformer_serving_{counter}_total[$window]))")


def _starts(side: str) -> str:
    """How often another process than before gave the page; a worker's pid says nothing of it."""
    since = f"max by (instance) (transformer_serving_{side}_start_time_seconds)"
    return _many(f"changes({since}[$window:])")


RESTARTS = (
    Alert(
        "PartRestarts",
        "restarts",
        _ends("gateway_worker_restarts"),
        AGAIN,
        TICKET,
        "Workers of {{ $labels.instance }} end again and again.",
        {"part": "worker"},
    ),
    Alert(
        "PartRestarts",
        "restarts",
        _ends("engine_triton_starts"),
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
