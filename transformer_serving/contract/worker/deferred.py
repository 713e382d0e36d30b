"""Work that is done once for many requests, a moment after the first of them.

What prometheus_client writes costs microseconds a number, so figures of every request are added up
in memory and told to it a few times a second.

Tested by tests/contract/test_durations.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from transformer_serving.contract.worker.process_wide import process_wide

# Who reads the figures sees them no later than so.
WITHIN_S = 0.2


class Deferred:
    """`work` must bear being done when there is nothing to do. From one event loop at a time.

    `last` is done in its place where the process ends: no later moment comes.
    """

    def __init__(
        self, work: Callable[[], None], within_s: float = WITHIN_S,
        last: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._work = work
        self._last = last or work
        self._within_s = within_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        """Do the work `within_s` from now; at once where no loop runs."""
        # A loop that was closed before its time came did not do it.
        if self._loop is not None and not self._loop.is_closed():
            return
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            self.now()
            return
        _waiting()[self.now] = self.end
        self._timer = self._loop.call_later(self._within_s, self.now)

    def now(self) -> None:
        self._wait_no_more()
        self._work()

    def end(self) -> None:
        self._wait_no_more()
        self._last()

    def _wait_no_more(self) -> None:
        # Its timer goes, too: the work itself may ask for another one.
        if self._timer is not None:
            self._timer.cancel()
        self._loop = self._timer = None
        _waiting().pop(self.now, None)


def do_all_now() -> None:
    """Every deferred work of the process, whichever version of the code waits with it."""
    for now in tuple(_waiting()):
        now()


def end_all() -> None:
    """The same where the process ends: what would have waited on is done as well."""
    # One work may hand to another what that would keep for a while.
    do_all_now()
    for now, end in tuple(_waiting().items()):
        (end or now)()


def _waiting() -> dict[Callable[[], None], Callable[[], None] | None]:
    """How each is done now, and how at the end: None of older versions of the code."""
    waiting: dict[Callable[[], None], Callable[[], None] | None] = process_wide("deferred", dict)
    return waiting
