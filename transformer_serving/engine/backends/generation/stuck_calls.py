"""Ends the process of a language model whose call into Triton does not come back.

Triton's Python backend (2.51, seen on 2026-11-23) may lose an answer's way when its caller leaves
at that moment, and the call that sends it then waits for ever: the engine's one thread with it, and
every later request. A process that has gone is found and its model loaded again by the controller.

Tested by tests/engine/test_stuck_calls.py.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# A machine or a Triton that stands still for less goes on with what it has.
_LIMIT_S = 20.0


def _end() -> None:
    # Not by Triton's log, which goes the way that is stuck.
    sys.stderr.write("a call into Triton has not come back; the model's process ends\n")
    sys.stderr.flush()
    os._exit(1)


class StuckCalls:
    """Calls are watched from `watch` on, one at a time in each thread."""

    def __init__(self, limit_s: float = _LIMIT_S, end: Callable[[], None] = _end) -> None:
        self._limit_s = limit_s
        self._end = end
        self._since: dict[int, float] = {}
        self._over = threading.Event()

    def watch(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()

    def close(self) -> None:
        self._over.set()

    @contextmanager
    def call(self) -> Iterator[None]:
        thread = threading.get_ident()
        self._since[thread] = time.monotonic()
        try:
            yield
        finally:
            del self._since[thread]

    def _watch(self) -> None:
        while not self._over.wait(self._limit_s / 20):
            latest = time.monotonic() - self._limit_s
            if any(since < latest for since in tuple(self._since.values())):
                self._end()
                return
