"""Whether callers lately left soon after they came, and by which age they had.

A caller that gives up after some milliseconds and comes again at once is always among what waits.
Where a call takes longer than that, each would carry texts of such callers that nobody waits for
any more when it ends. So while many do it, a text waits until it is older than they were when they
left: who is still there then, stays.

Pure, the caller has the clock. Tested by tests/preprocess/test_impatience.py.
"""

from __future__ import annotations

# Older ones had time to be answered: what is left of them is no pattern to wait for.
SOON_S = 0.1
# Half of what is remembered, and what a leaving must be of to count: many, and of many.
_HALF_S = 0.5
_LEAST = 8
_SHARE = 0.1
# Above the oldest that was seen, for the next one is seen a little later.
_MARGIN = 1.2


class _Half:
    """What was counted in a half."""

    __slots__ = ("came", "left", "oldest")

    def __init__(self) -> None:
        self.came = self.left = 0
        self.oldest = 0.0


class Impatience:
    """`came` and `left` are told of every request and of each that was left by its caller."""

    def __init__(self) -> None:
        self._last, self._now = _Half(), _Half()
        self._until = 0.0

    def came(self, now: float) -> None:
        self._turn(now)
        self._now.came += 1

    def left(self, age_s: float, now: float) -> None:
        if age_s < SOON_S:
            self._turn(now)
            self._now.left += 1
            self._now.oldest = max(self._now.oldest, age_s)

    def young_s(self, now: float) -> float:
        """The age from which on a caller is taken to stay; 0.0 while few leave."""
        last, this = self._last, self._now
        if not last.left and not this.left:
            return 0.0
        self._turn(now)
        last, this = self._last, self._now
        left = last.left + this.left
        if left < _LEAST or left < _SHARE * (last.came + this.came):
            return 0.0
        return _MARGIN * max(last.oldest, this.oldest)

    def _turn(self, now: float) -> None:
        if now < self._until:
            return
        # After a pause of more than a half, nothing of before it is lately.
        self._last = self._now if now < self._until + _HALF_S else _Half()
        self._now = _Half()
        self._until = now + _HALF_S
