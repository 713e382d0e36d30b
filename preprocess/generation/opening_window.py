"""How many sequences of a list may wait for their first token, by how long those before waited.

Tested by tests/preprocess/generation/test_turns.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# In times of the shortest wait. A first token that comes so soon is one that nobody stood before
# for long: neither would somebody else's.
_TIMELY = 2.0


class OpeningWindow:
    """Grows by one with each first token that comes in time, and halves where one is late: once for
    all that were asked for before.

    `clock` is in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.size = 1
        self._shortest: float | None = None
        self._halved_at: float | None = None

    def came(self, asked_at: float) -> None:
        """The first token of one that was asked for then, on the window's clock."""
        now = self.clock()
        wait = now - asked_at
        if self._shortest is None:
            self._shortest = wait
        elif wait <= _TIMELY * self._shortest:
            self._shortest = min(wait, self._shortest)
            self.size += 1
        elif self._halved_at is None or asked_at >= self._halved_at:
            self.size = max(1, self.size // 2)
            self._halved_at = now
