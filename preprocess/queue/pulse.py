"""Tells a Pace for how long this loop stood still: who did not listen heard no answer either."""

from __future__ import annotations

import asyncio
import time

from preprocess.queue.pace import Pace

EVERY_S = 0.1
# A beat that comes later has found the loop standing still: of a busy one too it may be late.
LATE_S = 0.2


class Pulse:
    """Beats on the event loop while calls run, and only then.

    The replies of engines that answered meanwhile are read after what a loop had to do first, and
    with that who came meanwhile begins: to them the engine would seem to have been silent.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._beat_at = 0.0

    def keep(self, pace: Pace, now: float) -> None:
        """Beat from now on, until no call of it runs."""
        if self._timer is None:
            self._beat_at = now
            self._beat_later(pace)

    def feel(self, pace: Pace, now: float) -> None:
        """Before its silence is asked for: who came may have the first turn after a stall."""
        late_s = now - self._beat_at - LATE_S
        if late_s > 0 and self._timer is not None:
            self._beat_at = now
            pace.stood_still(late_s, now)

    def _beat_later(self, pace: Pace) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._beat, pace)

    def _beat(self, pace: Pace) -> None:
        now = time.monotonic()
        self.feel(pace, now)
        self._beat_at, self._timer = now, None
        if pace.runs:
            self._beat_later(pace)
