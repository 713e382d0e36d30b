"""Ports of this machine's loopback that nobody listens on right now.

Below those that clients' connections get, and beside those of tests/stack: between the look and the
start of what is to listen there, nobody else takes one. Each process of tests has a half.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

FIRST, LAST = 10_000, 19_999


def own_ports(worker: str) -> list[int]:
    """Every other one, in an order that another run beside this one does not have."""
    ports = list(range(FIRST + int(worker.removeprefix("gw")) % 2, LAST + 1, 2))
    random.SystemRandom().shuffle(ports)
    return ports


# What was given is given again when all others were.
_ports = itertools.cycle(own_ports(os.environ.get("PYTEST_XDIST_WORKER", "gw0")))


def free_ports(count: int) -> list[int]:
    """All different."""
    tried = itertools.islice(_ports, len(range(FIRST, LAST, 2)))
    found = list(itertools.islice(filter(is_free, tried), count))
    assert len(found) == count, f"no {count} free ports between {FIRST} and {LAST}"
    return found


def free_port() -> int:
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", port))
        return True
    return False
