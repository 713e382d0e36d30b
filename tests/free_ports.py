"""Ports of this machine's loopback that nobody listens on right now.

Below those that clients' connections get: between the look and the
start of what is to listen there, nobody else takes one. Each process of tests has its share.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

FIRST, LAST = 10_000, 19_999


def share() -> tuple[int, int]:
    """Which process of tests this is, from 0 on, and how many there are."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return int(worker.removeprefix("gw")), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def own_ports(process: int, processes: int) -> list[int]:
    """A process's, in an order that another run beside this one does not have."""
    ports = list(range(FIRST + process, LAST + 1, processes))
    random.SystemRandom().shuffle(ports)
    return ports


_own = own_ports(*share())
# What was given is given again when all others were.
_ports = itertools.cycle(_own)


def free_ports(count: int) -> list[int]:
    """All different."""
    tried = itertools.islice(_ports, len(_own))
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


def free_port_base() -> int:
    """The first of six free ports in a row, below those that clients' connections get.

    Beside those of `free_ports`. Each process of tests has its share here, too: what one
    found free is listened to a moment later.
    """
    bases = own_bases(*share())
    begin = os.getpid() % len(bases)
    for base in [*bases[begin:], *bases[:begin]]:
        try:
            for port in range(base, base + 6):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return int(base)
    raise AssertionError("no six free ports in a row")


def own_bases(process: int, processes: int) -> range:
    return range(20_000 + 7 * process, 32_000, 7 * processes)
