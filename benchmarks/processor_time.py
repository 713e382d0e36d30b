"""Where a measurement's processor time went that is not the measured server's own."""

from __future__ import annotations

import resource
from collections.abc import Mapping

import psutil

from engine.orphans import SERVER, STUB

# By the beginning of a process's name; every Triton of this machine counts.
_PROCESSES = {"triton": SERVER, "engine": STUB}
LOAD = "load"


def spent() -> dict[str, float]:
    """Seconds so far: Triton's own, its engines', and of load tools that have ended."""
    seconds = dict.fromkeys(_PROCESSES, 0.0)
    for process in psutil.process_iter():
        try:
            name = process.name()
            for part, beginning in _PROCESSES.items():
                if name.startswith(beginning):
                    times = process.cpu_times()
                    seconds[part] += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {**seconds, LOAD: children.ru_utime + children.ru_stime}


def since(before: Mapping[str, float], requests: int) -> dict[str, float]:
    """Microseconds a request, since `before` was read."""
    return {f"{part}_us": 1e6 * (now - before[part]) / requests for part, now in spent().items()}
