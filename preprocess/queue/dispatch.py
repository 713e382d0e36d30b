"""Which texts leave in the next call to the engine, and when: pure, the caller has the clock.

Tested by tests/preprocess/test_coalesce.py and tests/preprocess/test_overload.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from preprocess.queue.admission import SURE
from preprocess.queue.impatience import Impatience
from preprocess.queue.pace import Pace
from preprocess.queue.ticket import Text
from preprocess.queue.waiting import Batch, WaitingTexts

# A slow engine's calls are cut to about so long, for who waits behind them.
LONG_CALL_S = 0.25
# And those of texts that their callers may leave, which an idle engine has nothing better than.
SHORT_CALL_S = 0.01
# Of a call's room that it has in any case: one text.
_NONE = 2**31
# A call that would only wait behind another is sent so long before that one's end, or by this part
# of what calls take: sooner it might have got more texts, later the engine would stand still.
_AHEAD_S, _AHEAD = 0.004, 0.05
# A shorter wait is none: a loop's clock may not go on by it.
_NO_WAIT_S = 1e-4


@dataclass(eq=False)
class Dispatch:
    """What waits before one engine, by what is known of the engine and of the callers."""

    waiting: WaitingTexts[Text]
    pace: Pace
    impatience: Impatience = field(default_factory=Impatience)

    def wait_s(self, now: float, *, free: bool = False) -> float:
        """Seconds until all that waits is answered."""
        tokens = self.waiting.tokens
        return self.pace.wait_s(tokens, now, self.waiting.calls(tokens), free=free)

    def ends_s(self, now: float) -> float:
        """Seconds that a call takes which leaves now: who must be answered sooner is late already.

        0.0 where only a few texts wait, which take nothing from others; and another server or
        instance may be free for them.
        """
        pace, waits = self.pace, self.waiting.tokens
        is_crowd = pace.calls and waits > pace.in_flight
        return SURE * pace.call_ends_s(waits, now) if is_crowd else 0.0

    def hold_s(self, now: float) -> float:
        """How long a call that would only wait behind another can still get texts for nothing."""
        pace = self.pace
        if not pace.calls or self.waiting.fills_a_call() or not pace.waits_behind:
            return 0.0
        hold_s = pace.free_s(now) - max(_AHEAD_S, _AHEAD * pace.call_s)
        return hold_s if hold_s > _NO_WAIT_S else 0.0

    def take(
        self, now: float, is_wanted: Callable[[Text], bool], *, alone: bool
    ) -> Batch[Text] | None:
        """The next call; `alone`: no other runs."""
        is_ready, most = self.is_ready(now), self.pace.most_tokens(LONG_CALL_S)
        if is_ready is None:
            return self.waiting.take(is_wanted, most)
        batch = self.waiting.take(is_wanted, most, is_ready)
        if batch is None and alone:
            most = self.pace.most_tokens(SHORT_CALL_S)
            batch = self.waiting.take(is_wanted, most, least_room=_NONE)
        return batch

    def is_ready(self, now: float) -> Callable[[Text], bool] | None:
        """Tells texts whose callers will stay from those whose may leave; None: all are ready.

        Only where what waits takes longer than callers take to leave: else they had an answer.
        Golden ones have no caller, and whoever stands behind one would wait with it.
        """
        young_s = self.impatience.young_s(now)
        if not young_s or self.wait_s(now) <= young_s:
            return None
        return lambda text: text.ticket.golden or text.ticket.came <= now - young_s
