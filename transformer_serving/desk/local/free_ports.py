"""Ports for a stack beside others.

Tested by tests/local/test_free_ports.py.
"""

from __future__ import annotations

import itertools
import os
import socket

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import LOOPBACK

# Below those that connections get, which stay taken for a minute after each: after a load test all.
_FIRST, _LAST = 20_000, 31_999


def free_row(count: int, *, beside: int | None = None) -> int:
    """The first of `count` ports in a row on which nobody listens right now. Raises Failure.

    `beside` is a port that is wanted for something else, and is none of them.
    """
    rows = range(_FIRST, _LAST + 2 - count, count)
    begin = os.getpid() % len(rows)
    for base in itertools.chain(rows[begin:], rows[:begin]):
        if beside in range(base, base + count):
            continue
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.bind((LOOPBACK, port))
        except OSError:
            continue
        return base
    raise Failure(f"no {count} free ports in a row")
