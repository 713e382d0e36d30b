"""Whether the served stack is asked anything: two looks at its gateway's figures.

Tested by tests/tune/test_traffic.py and tests/stack/test_tune.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import load_record
from transformer_serving.desk.local.supervision import Supervisor
from transformer_serving.desk.watch.counters import Page, increases
from transformer_serving.desk.watch.look import figures_of

LOOK_S = 5.0
# Requests of any status; golden ones are in none of these.
_ANSWERED = "requests_total"
# What has not been answered yet, such as a stream.
_UNDERWAY = ("waiting_tokens", "running_streams")


def refuse_traffic(state: Path, *, seconds: float = LOOK_S) -> None:
    """Raises Failure (exit code 2) where the stack of that folder has requests, and where that
    cannot be seen; a stack that is down has none."""
    record = load_record(state)
    if record is None or not Supervisor(state).is_up():
        return
    count = asked(lambda: figures_of(record), seconds)
    if count:
        raise Failure(
            f"the served stack was asked {count} times within {seconds:g} s: both would be slower, "
            "and the figures wrong; tune when it is idle, or with --anyway",
            exit_code=2,
        )


def asked(look: Callable[[], Page], seconds: float) -> int:
    """How many requests were answered between two looks, with those that wait at the second."""
    before = look()
    time.sleep(seconds)
    after = look()
    risen = increases(before.counters, after.counters)
    answered = sum(value for series, value in risen.items() if series.name == _ANSWERED)
    waiting = sum(after.gauge(name) or 0 for name in _UNDERWAY)
    return round(answered) or int(waiting > 0)
