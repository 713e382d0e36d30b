"""How fast one engine works, from the calls it has answered: pure, the caller has the clock.

Only the time counts in which it had a call, so that an idle engine stays as fast as it was. Calls
are put together to samples of SAMPLE_S of such time or one call, whichever is longer. Of the last
ones the slowest is left out: a pause (a stopped process, kernels met for the first time) is no
rate. So one call alone, a fresh engine's first, is none either. What an engine does for single
texts is less than for full calls, so at the beginning of a burst the rate is too low; what a call
costs of itself (cost.py) is kept apart from it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf

from preprocess.queue.cost import NO_COST, Cost, OwnCost, Sample, cost_of

SAMPLE_S = 0.05
_SAMPLES = 8
# With one, calls of two servers that both work would be overtaken half of the time.
PASSED = 2
# A call that a part of its time at most ran behind another says how long one alone takes; one that
# ran so for longer than it took afterwards, whether it waited.
_ALONE, _BEHIND = 0.1, 0.5
# Of the time of one alone that one behind another takes from then on where it has waited: where
# both ran at once, as on two servers, it is but what was left of it.
_WAITED = 0.75
_LATEST = 0.3
# Calls alone after which one behind another is tried again.
_TRIED = 64


@dataclass(eq=False, slots=True)
class Running:
    """A call that runs; `worked` is the time that had counted when it began, `passed` how many
    that began after it were answered.
    """

    tokens: int
    began: float
    worked: float
    passed: int = 0


class Pace:
    """`rate` is tokens a second, None before the second answer; `call_s` what a call adds to the
    time until the engine is done, and `cost` what of it is its own. `calls` are those that run,
    `in_flight` their tokens. `own` is what a call is taken to cost beside its tokens while only
    calls that are alike were seen.

    A call that a later one has overtaken runs beside the others, as a long text on another server,
    or hangs: time in which nothing else runs counts when it is answered, if it is. One that PASSED
    later ones have overtaken keeps nobody waiting, and is none of `calls` any more.
    """

    def __init__(self, own: OwnCost = NO_COST) -> None:
        self.rate: float | None = None
        self.call_s = 0.0
        self.cost = Cost()
        self._own = own
        self.calls = 0
        self.in_flight = 0
        # Of the calls those that none has overtaken.
        self._working = 0
        self._since = 0.0
        # Seconds since then in which the caller stood still.
        self._stood_s = 0.0
        # Seconds that counted, until `_since`.
        self._worked = 0.0
        # In the order in which they began.
        self._running: list[Running] = []
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._begun = [0.0] * 5
        # Of what `cost` says, what calls took that ran alone, and those that were behind another.
        self._alone: float | None = None
        self._behind: float | None = None
        self._since_tried = 0

    def begin(self, tokens: int, now: float) -> Running:
        """A call goes to the engine."""
        if not self._working:
            self._since, self._stood_s = now, 0.0
        self._working += 1
        self.calls += 1
        self.in_flight += tokens
        call = Running(tokens, now, self._worked + now - self._since)
        self._running.append(call)
        return call

    def end(self, call: Running, now: float, *, answered: bool) -> None:
        """It is back; time that ended in an error says nothing of the rate."""
        seconds = self._silent_s(now)
        if answered:
            self._compare(call, now)
        self._since, self._stood_s = now, 0.0
        before = self._leave(call)
        if not answered:
            return
        if call.passed:
            # Also those in which nothing ran but calls that had been overtaken.
            seconds += max(0.0, now - call.began - (self._worked + seconds - call.worked))
        self._worked += seconds
        if call.passed:
            # It ran since before those behind it began: of them no second is left to be counted.
            for other in self._running[before:]:
                other.worked = self._worked - (now - other.began)
        for other in self._running[:before]:
            self._working -= not other.passed
            other.passed += 1
            if other.passed == PASSED:
                self._count_out(other)
        self._add(call.tokens, seconds)

    def drop(self, call: Running) -> None:
        """It was given up before it was begun: neither work nor time."""
        self._leave(call)

    def stood_still(self, seconds: float, now: float) -> None:
        """The caller did until now, and heard of no answer: nobody is to wait longer for that."""
        self._stood_s = min(self._stood_s + seconds, now - self._since)

    @property
    def runs(self) -> bool:
        """Whether any call does, also one that others have overtaken."""
        return bool(self._running)

    def _silent_s(self, now: float) -> float:
        """Since when there was no answer, of seconds that count."""
        return now - self._since if self._working else 0.0

    def _leave(self, call: Running) -> int:
        """How many of those that still run began before it."""
        before = self._running.index(call)
        del self._running[before]
        self._working -= not call.passed
        if call.passed < PASSED:
            self._count_out(call)
        return before

    def _count_out(self, call: Running) -> None:
        self.calls -= 1
        self.in_flight -= call.tokens

    def _compare(self, call: Running, now: float) -> None:
        """Of the oldest: how long it took, after how long a time behind another."""
        if self.rate is None or call.passed or self._running[0] is not call:
            return
        took, behind = now - max(self._since, call.began), max(0.0, self._since - call.began)
        part = took / max(self.cost.takes_s(1, call.tokens), 1e-9)
        if behind <= _ALONE * took:
            self._alone = _mean(self._alone, part)
            self._since_tried += 1
            if self._since_tried == _TRIED:
                self._behind, self._since_tried = None, 0
        elif behind >= _BEHIND * took:
            self._behind = _mean(self._behind, part)

    @property
    def waits_behind(self) -> bool:
        """Whether a call that is sent while another runs only waits for it, which is worth a look
        where most of what calls take is their own: then one call for all of it is had for little.

        One alone is looked at first, then one that is sent early, and again from time to time.
        """
        if self.rate is None or 2 * self.cost.call_s <= self.call_s:
            return False
        if self._alone is None or self._behind is None:
            return self._alone is None
        return self._behind > _WAITED * self._alone

    def _add(self, tokens: int, seconds: float) -> None:
        counted = (tokens, seconds, 1, tokens * tokens, tokens * seconds)
        self._begun = [one + more for one, more in zip(self._begun, counted, strict=True)]
        if self._begun[1] >= SAMPLE_S or self.rate is None:
            self._samples.append(Sample(*self._begun))
            self._begun = [0.0] * 5
            self._measure()

    def wait_s(self, tokens: int, now: float, calls: int = 0, *, free: bool = False) -> float:
        """Seconds until the calls that run and so many tokens after them are answered, which leave
        in so many calls.

        A call that is overdue is taken to be late by as much again; before there is a rate that is
        all that is known. Where one is `free` to leave at once, no silence of others is its own.
        """
        silent = now - self._since - self._stood_s if self._running and not free else 0.0
        if not self.rate:
            return silent
        running_s = self.cost.takes_s(self.calls, self.in_flight)
        return self.cost.takes_s(calls, tokens) + abs(running_s - silent)

    def free_s(self, now: float) -> float:
        """Seconds until the calls that run are answered, at the least; one that was overtaken may
        hang, and says nothing of when a call ends that is sent now.
        """
        if not self._working:
            return 0.0
        return max(0.0, self.cost.takes_s(self.calls, self.in_flight) - self._silent_s(now))

    def most_tokens(self, seconds: float) -> float:
        """Of a call that takes so long; where that is mostly its own, of one that takes as long
        again, for with fewer the engine would do nothing but calls.
        """
        if not self.cost.token_s:
            return inf
        return max(seconds - self.cost.call_s, self.cost.call_s) / self.cost.token_s

    def call_ends_s(self, tokens: int, now: float) -> float:
        """Seconds until a call that leaves now is answered, where so many tokens could go.

        At the least: one that is overdue may end at once.
        """
        if not self.rate:
            return 0.0
        return self.free_s(now) + min(self.call_s, self.cost.takes_s(1, tokens))

    def _measure(self) -> None:
        samples = sorted(self._samples, key=lambda one: one.tokens / max(one.seconds, 1e-9))
        del samples[0]
        if not samples:
            return
        seconds = max(sum(one.seconds for one in samples), 1e-9)
        self.rate = sum(one.tokens for one in samples) / seconds
        self.call_s = seconds / sum(one.calls for one in samples)
        self.cost = cost_of(samples, self._own)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else (1 - _LATEST) * before + _LATEST * now
