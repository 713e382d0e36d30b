"""Where a measurement's processor time went that is not the measured server's own."""

from __future__ import annotations

import ctypes
import resource
import time
from collections.abc import Mapping

import psutil

from transformer_serving.engine.orphans import SERVER, STUB

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
                    seconds[part] += process_seconds(process.pid)
        except psutil.NoSuchProcess:
            continue
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {**seconds, LOAD: children.ru_utime + children.ru_stime}


def is_tritons(name: str) -> bool:
    """Whether a process of that name is counted as Triton's or its engines'."""
    return name.startswith(tuple(_PROCESSES.values()))


def process_seconds(pid: int) -> float:
    """Of all threads of a process, to the nanosecond: /proc counts in hundredths of a second,
    of which Triton itself may not use one in a round. 0 of a process that has ended.

    The clock is clock_getcpuclockid(3)'s; Python has it for threads alone.
    """
    clock = ctypes.c_int()
    if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
        return 0.0
    try:
        return time.clock_gettime(clock.value)
    except OSError:
        return 0.0


def since(before: Mapping[str, float], requests: int) -> dict[str, float]:
    """Microseconds a request, since `before` was read."""
    return {f"{part}_us": 1e6 * (now - before[part]) / requests for part, now in spent().items()}
