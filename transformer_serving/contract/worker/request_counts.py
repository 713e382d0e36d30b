"""What counts the running requests, which a change of the host's configuration waits for.

Until they have ended clearml-serving holds back new ones, of every endpoint. A request that has all
that it needs of its own endpoint, and may run for minutes, is not to be waited for.

Tested by tests/gateway/test_broken_streams.py and tests/gateway/test_leaving.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformer_serving.contract.worker.process_wide import process_wide


def request_counts() -> list[Any]:
    """The host's own counter, put here by the gateway; without one nothing is."""
    kept: list[Any] = process_wide("request_counts", list)
    return kept


@contextmanager
def uncounted() -> Iterator[None]:
    """For a request that the host has counted: in the block no change waits for it."""
    counts = list(request_counts())
    for count in counts:
        count.dec()
    try:
        yield
    finally:
        for count in counts:
            count.inc()
