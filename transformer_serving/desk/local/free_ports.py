"""Ports for a stack beside others.

Tested by tests/local/test_free_ports.py.
"""

from __future__ import annotations

import os
import socket

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import LOOPBACK


def free_row(count: int, *, beside: int | None = None) -> int:
    """The first of `count` ports in a row on which nobody listens right now. Raises Failure.

    `beside` is a port that is wanted for something else, and is none of them.
    """
    for base in range(21_000 + os.getpid() % 20_000, 60_000, count):
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
