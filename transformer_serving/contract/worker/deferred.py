"""Work that is done once for many requests, a moment after the first of them.

What prometheus_client writes costs microseconds a number, so figures of every request are added up
in memory and told to it a few times a second.

Tested by tests/contract/test_durations.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# Who reads the figures sees them no later than so.
WITHIN_S = 0.2


class Deferred:
    """`work` must bear being done when there is nothing to do. From one event loop at a time."""

    def __init__(self, work: Callable[[], None], within_s: float = WITHIN_S) -> None:
        self._work = work
        self._within_s = within_s
        self._loop: asyncio.AbstractEventLoop | None = None

    def soon(self) -> None:
        """Do the work `within_s` from now; at once where no loop runs."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._work()
            return
        # A loop that was closed before its time came is another one.
        if loop is not self._loop:
            self._loop = loop
            loop.call_later(self._within_s, self.now)

    def now(self) -> None:
        self._loop = None
        self._work()
