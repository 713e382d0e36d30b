"""The clock of a load, and waking an event loop at exact times: event loops themselves round up to
whole milliseconds.

Tested by tests/bench/test_load.py and tests/bench/test_time_limit.py.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections.abc import Callable, Iterable

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _Spec(ctypes.Structure):
    """struct itimerspec: the interval, then the first time, in seconds and nanoseconds."""

    _fields_ = [
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    ]


class Timer:
    """Linux's timerfd: calls `wake` in the loop at the times given to `set`, one at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "no timer from the system")
        loop.add_reader(self._file, self._ready)

    def set(self, moment: float) -> None:
        """`moment` on time.monotonic()'s clock; one in the past wakes at once."""
        # A zero time would switch the timer off.
        nanoseconds = max(int(moment * 1e9), 1)
        spec = _Spec(0, 0, *divmod(nanoseconds, 1_000_000_000))
        self._libc.timerfd_settime(self._file, _ABSOLUTE, ctypes.byref(spec), None)

    def close(self) -> None:
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _ready(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:
            return
        self._wake()


def now() -> float:
    return time.monotonic()


def lasted(begun: float, seconds: float, answered: Iterable[float]) -> float:
    """How long a load of `seconds` has gone on: to its end, or its last answer where that is later.

    Whoever still has none is waited for, but rates are not to be divided by that wait.
    """
    return min(now(), max((begun + seconds, *answered))) - begun
