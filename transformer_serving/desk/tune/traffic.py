"""Whether the served stack is asked anything: looks at its gateway's figures.

Tested by tests/tune/test_traffic.py and tests/stack/test_tune.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.leftovers import has_leftovers
from transformer_serving.desk.local.record import load_record
from transformer_serving.desk.local.supervision import Supervisor
from transformer_serving.desk.watch.counters import Page, Rise
from transformer_serving.desk.watch.look import figures_of

LOOK_S = 5.0
# Answers of any status, as the gateway tells them, to whom every endpoint's come, and as a bundle's
# own code does; golden requests are in neither.
_ANSWERED = ("request_duration_seconds_count", "requests_total")
# What has not been answered yet, such as a stream.
_UNDERWAY = ("gateway_requests_in_flight", "waiting_tokens", "running_streams")


class Traffic:
    """The requests between one look and the next; `look` raises Failure where none can be had."""

    def __init__(self, look: Callable[[], Page]) -> None:
        self._look = look
        self._rise = Rise(look().counters)

    def count(self) -> int:
        """How many were answered since the last look, or 1 where one waits now."""
        after = self._look()
        risen = self._rise.next(after.counters)
        answered = max(
            sum(value for series, value in risen.items() if series.name == name)
            for name in _ANSWERED
        )
        waiting = sum(after.gauge(name) or 0 for name in _UNDERWAY)
        return round(answered) or int(waiting > 0)

    def is_there(self) -> bool:
        """The same of a stack that may have gone meanwhile: then there is none."""
        try:
            return self.count() > 0
        except Failure:
            return False


def refuse_traffic(state: Path, *, seconds: float = LOOK_S) -> Callable[[], bool]:
    """Raises Failure (exit code 2) where the stack of that folder has requests, and where that
    cannot be seen; one of which nothing runs has none. Returns what says whether it has some later.
    """
    record = load_record(state)
    if record is None or not (Supervisor(state).is_up() or has_leftovers(state)):
        return lambda: False
    traffic = Traffic(lambda: figures_of(record))
    time.sleep(seconds)
    if count := traffic.count():
        raise Failure(
            f"the served stack was asked {count} times within {seconds:g} s: both would be slower, "
            "and the figures wrong; tune when it is idle, or with --anyway",
            exit_code=2,
        )
    return traffic.is_there
