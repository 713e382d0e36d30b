"""Who is let into the queue: by the time that what waits before a request will take.

A refusal is immediate and says when to come back; whoever is let in is answered in time as long as
the engine stays as fast as it was. Nobody is refused while a call could leave at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from preprocess.pace import Pace
from preprocess.stats import waiting_tokens
from preprocess.waiting import PACE, WaitingTexts
from transformer_serving.contract.errors import ServingError

# Of the time that a request has left, this much may be spent by the estimate: rates change, and
# an answer that comes a little late was computed for nobody.
SURE = 0.8
_MOST_RETRY_S = 3600


@dataclass
class Admission:
    """Tokens that wait or are being computed, over all endpoints of the worker.

    `limit` is the most of them; a request without a deadline of its own waits `max_wait_s` at most.
    """

    limit: int
    max_wait_s: float
    tokens: int = 0
    gauge: Any = field(default_factory=waiting_tokens)

    def enter(self, tokens: int, wait_s: float) -> None:
        """Count a request in. Raises ServingError `overloaded`; an idle worker takes anything.

        `wait_s` is how long what waits now will take.
        """
        if self.tokens and self.tokens + tokens > self.limit:
            raise ServingError(
                "overloaded",
                "too many tokens wait for the engine; try again after Retry-After",
                limit=self.limit,
                got=self.tokens + tokens,
                retry_after_s=_whole(wait_s),
            )
        self.tokens += tokens
        self.gauge.set(self.tokens)

    def leave(self, tokens: int) -> None:
        self.tokens -= tokens
        self.gauge.set(self.tokens)


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A request before the queue; `tokens` and `last_text` are 0 while it is not tokenized.

    `left_s` is the time to its own deadline, None where it has none of its own.
    """

    left_s: float | None
    tokens: int = 0
    last_text: int = 0


def check_wait(
    newcomer: Newcomer, waiting: WaitingTexts[Any], pace: Pace, max_wait_s: float, now: float
) -> None:
    """Raises ServingError `overloaded` where what is before the newcomer ends too late.

    With a deadline of its own, all of it must be answered by then; else its first call must be
    back within `max_wait_s`.
    """
    if newcomer.left_s is None:
        allowed = max_wait_s
        wait = pace.wait_s(waiting.due_tokens, now) + pace.call_s
    else:
        allowed = SURE * newcomer.left_s
        # Its own last text comes after so much of what others have, and after its own.
        passed = PACE * (newcomer.tokens - newcomer.last_text)
        before = min(waiting.tokens, waiting.due_tokens + passed)
        own = newcomer.tokens / pace.rate if pace.rate else 0.0
        wait = pace.wait_s(before, now) + max(own, pace.call_s)
    if wait > allowed:
        raise takes_too_long(allowed, wait)


def takes_too_long(allowed: float, wait: float) -> ServingError:
    """The refusal of a request that would wait `wait` seconds."""
    return ServingError(
        "overloaded",
        "what waits before this request takes too long; try again after Retry-After",
        limit=f"{allowed:.1f} s",
        got=f"{wait:.1f} s",
        retry_after_s=_whole(wait),
    )


def _whole(seconds: float) -> int:
    return min(max(1, math.ceil(seconds)), _MOST_RETRY_S)
