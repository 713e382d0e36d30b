"""Who is let into the queue: by the time that what waits before a request will take.

A refusal is immediate and says when to come back; whoever is let in is answered in time as long as
the engine stays as fast as it was. Nobody is refused while a call could leave at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from preprocess.queue.pace import Pace
from preprocess.queue.waiting import PACE, WaitingTexts
from preprocess.stats import tell_limit, waiting_tokens
from preprocess.tokens import Encoded
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.deferred import Deferred

# Of the time that a request has left, this much may be spent by the estimate: rates change, and
# an answer that comes a little late was computed for nobody.
SURE = 0.75
# Where nobody names a deadline: so much longer than estimated it may take.
_SLOWER = 1.1
# And so much of the limit is used: a crowd's refusals make the engine slower than it was when those
# before them were let in.
_FULL = 0.86
_MOST_RETRY_S = 3600
# A request with more than this share of the limit brings many tokens.
_MANY = 1 / 64
# So much room is enough for a request of any size: else the largest, which would need more than
# there ever is beside others, would be told to come back without end.
_ENOUGH = 1 / 4
_TOKENS, _HELD = "tokens", "held"


@dataclass
class Share:
    """What one endpoint has of the worker's tokens, in requests of few and in those of many."""

    few: int = 0
    many: int = 0


class Taken(NamedTuple):
    """A request that was let in: its tokens, and what of the limit they hold."""

    tokens: int
    held: int
    many: bool


@dataclass
class Admission:
    """Tokens that wait or are being computed, over all endpoints of the worker.

    `limit` is the most of them; a request without a deadline of its own waits `max_wait_s` at most.
    `counts` are those of every version of this code in the process.

    Nobody can take all of it. An endpoint's requests get no more than what is free beside them,
    as the queues of a shared-memory switch do (Choudhury and Hahne, "Dynamic queue length
    thresholds for shared-memory packet switches", 1998), so that with n busy endpoints a share of
    n + 1 is left for one more; and those that bring many tokens get half of that. A request that is
    larger than its room holds all of it, and no more: what is left for others is as it was.
    """

    limit: int
    max_wait_s: float
    counts: Counter[str] = field(default_factory=Counter)
    gauge: Any = field(default_factory=waiting_tokens)

    def __post_init__(self) -> None:
        self._soon = Deferred(self._tell).soon
        tell_limit(
            "waiting_tokens_limit", "The most tokens that may wait or be computed.", self.limit
        )

    @property
    def tokens(self) -> int:
        return self.counts[_TOKENS]

    def enter(self, share: Share, tokens: int, wait_s: Callable[[], float]) -> Taken:
        """Count a request in. Raises ServingError `overloaded`; an idle worker takes anything.

        `wait_s` says how long what waits now will take, of which only a refusal tells.
        """
        many = tokens > self.limit * _MANY
        room = self._room(share, many=many)
        if self.tokens and min(tokens, self.limit * _ENOUGH) > room:
            raise ServingError(
                "overloaded",
                "too many tokens wait for the engine; try again after Retry-After",
                limit=max(room, 0),
                got=tokens,
                retry_after_s=_whole(wait_s()),
            )
        self._count(share, taken := Taken(tokens, min(tokens, room), many), 1)
        return taken

    def leave(self, share: Share, taken: Taken) -> None:
        self._count(share, taken, -1)

    def _room(self, share: Share, *, many: bool) -> int:
        free = self.limit - self.counts[_HELD]
        return free // 2 - share.many if many else free - share.few

    def _count(self, share: Share, taken: Taken, sign: int) -> None:
        if taken.many:
            share.many += sign * taken.held
        else:
            share.few += sign * taken.held
        self.counts[_HELD] += sign * taken.held
        self.counts[_TOKENS] += sign * taken.tokens
        self._soon()

    def _tell(self) -> None:
        self.gauge.set(self.tokens)


class Newcomer(NamedTuple):
    """A request before the queue; `texts`, `tokens` and `last_text` are 0 while it is not
    tokenized.

    `left_s` is the time to its own deadline, None where it has none of its own.
    """

    left_s: float | None
    tokens: int = 0
    last_text: int = 0
    texts: int = 0

    @classmethod
    def of(cls, encoded: Sequence[Encoded], left_s: float | None) -> Newcomer:
        tokens = sum(len(text.ids) for text in encoded)
        return cls(left_s, tokens, len(encoded[-1].ids) if encoded else 0, len(encoded))


def check_wait(
    newcomer: Newcomer,
    waiting: WaitingTexts[Any],
    pace: Pace,
    max_wait_s: float,
    now: float,
    *,
    free: bool = False,
) -> None:
    """Raises ServingError `overloaded` where what is before the newcomer ends too late.

    With a deadline of its own, all of it must be answered by then; else its first call must be
    back within `max_wait_s`, or be the next one. `free`: a call could leave now.
    """
    if newcomer.left_s is None:
        # Who is in the next call waits for no crowd: of an engine whose calls are as long, nobody
        # would be let in while one runs.
        allowed = max(_FULL * max_wait_s, 2 * _SLOWER * pace.call_s if pace.waits_behind else 0.0)
        due = waiting.due_tokens
        wait = _SLOWER * (pace.wait_s(due, now, waiting.calls(due), free=free) + pace.call_s)
    else:
        allowed = SURE * newcomer.left_s
        # Its own last text comes after so much of what others have, and after its own.
        passed = PACE * (newcomer.tokens - newcomer.last_text)
        before = min(waiting.tokens, waiting.due_tokens + passed)
        calls = waiting.calls_of(newcomer.texts, newcomer.tokens)
        own = max(pace.cost.takes_s(calls, newcomer.tokens), pace.call_s)
        # Where calls wait for each other, what those that run and one more take is known better.
        sure = SURE * _SLOWER if pace.waits_behind else 1.0
        wait = sure * (pace.wait_s(0, now, free=free) + own)
        wait += pace.cost.takes_s(waiting.calls(before), before)
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
