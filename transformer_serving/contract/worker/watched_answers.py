"""The answers of endpoints in a rollout, from preprocess, which notes them, to the gateway.

Tested by tests/gateway/test_rollout_figures.py.
"""

from __future__ import annotations

from collections import deque

from transformer_serving.contract.worker.process_wide import process_wide

# Of how many answers a list keeps what nobody has counted yet.
MOST = 50_000
# Status, tokens and seconds of each.
Answers = deque[tuple[int, int, float]]


def watched_answers() -> dict[str, Answers]:
    """The worker's lists by endpoint; the gateway makes them, and mostly there are none."""
    return process_wide("rollout_watched", dict)
