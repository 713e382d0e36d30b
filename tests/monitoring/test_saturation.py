"""Alerts of what is nearly full fire before, or when, the product itself lets nobody in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from preprocess.queue.admission import Admission, Newcomer, Share, check_wait
from preprocess.queue.pace import Pace
from transformer_serving.contract.errors import ServingError
from transformer_serving.desk.monitoring.alerts import LONG_WAIT, MANY_WAIT

LIMIT = 400_000


def filled(endpoints: int, tokens: int) -> float:
    """The part of the limit that waits when each of so many endpoints is refused."""
    admission = Admission(LIMIT, 2.0)
    for share in (busy := [Share() for _ in range(endpoints)]):
        admission.enter(share, tokens, lambda: 0.0)
    while busy:
        for share in list(busy):
            try:
                admission.enter(share, tokens, lambda: 0.0)
            except ServingError:
                busy.remove(share)
    return admission.tokens / LIMIT


@pytest.mark.parametrize("endpoints", [1, 2, 3, 4])
@pytest.mark.parametrize("tokens", [100, 6_000, 6_300, 20_000], ids="{} tokens each".format)
def test_overload_is_seen_in_the_tokens_that_wait(endpoints: int, tokens: int) -> None:
    """Of requests with few tokens and with many, a twentieth of the limit at most."""
    assert MANY_WAIT < filled(endpoints, tokens) < 0.82


def waited(call_s: float) -> float:
    """The part of the time that requests may wait when one is refused for it."""
    pace, waiting, most_s = (
        Pace(),
        SimpleNamespace(tokens=0, due_tokens=0, calls=lambda tokens: 0),
        2.0,
    )
    for at in range(4):
        running = pace.begin(round(1000 * call_s), at)
        pace.end(running, at + call_s, answered=True)
    assert pace.rate == pytest.approx(1000, rel=0.01)
    held: Any = waiting
    for _ in range(10_000):
        try:
            check_wait(Newcomer(None), held, pace, most_s, 100.0)
        except ServingError:
            break
        waiting.due_tokens += 5
    assert pace.rate is not None
    return float(waiting.due_tokens / pace.rate / most_s)


@pytest.mark.parametrize("call_s", [0.01, 0.1, 0.3])
def test_overload_is_seen_in_the_time_that_it_takes(call_s: float) -> None:
    assert LONG_WAIT < waited(call_s) < 0.8
