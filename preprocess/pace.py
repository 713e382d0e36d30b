"""How fast one engine works, from the calls it has answered: pure, the caller has the clock.

Only the time counts in which it had a call, so that an idle engine stays as fast as it was. Calls
are put together to samples of SAMPLE_S of such time or one call, whichever is longer. Of the last
ones the slowest is left out: a pause (a stopped process, kernels met for the first time) is no
rate. So one call alone, a fresh engine's first, is none either. What an engine does for single
texts is less than for full calls, so at the beginning of a burst the rate is too low rather than
too high; it is right one or two full calls later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

SAMPLE_S = 0.05
_SAMPLES = 8
# With one, calls of two servers that both work would be overtaken half of the time.
PASSED = 2


@dataclass(frozen=True)
class Sample:
    """What was answered in some seconds of work."""

    tokens: int
    seconds: float
    calls: int


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
    time until the engine is done. `calls` are those that run, `in_flight` their tokens.

    A call that a later one has overtaken runs beside the others, as a long text on another server,
    or hangs: time in which nothing else runs counts when it is answered, if it is. One that PASSED
    later ones have overtaken keeps nobody waiting, and is none of `calls` any more.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self.call_s = 0.0
        self.calls = 0
        self.in_flight = 0
        # Of the calls those that none has overtaken.
        self._working = 0
        self._since = 0.0
        # Seconds that counted, until `_since`.
        self._worked = 0.0
        # In the order in which they began.
        self._running: list[Running] = []
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._begun: list[float] = [0, 0.0, 0]

    def begin(self, tokens: int, now: float) -> Running:
        """A call goes to the engine."""
        if not self._working:
            self._since = now
        self._working += 1
        self.calls += 1
        self.in_flight += tokens
        call = Running(tokens, now, self._worked + now - self._since)
        self._running.append(call)
        return call

    def end(self, call: Running, now: float, *, answered: bool) -> None:
        """It is back; time that ended in an error says nothing of the rate."""
        seconds = self._silent_s(now)
        self._since = now
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

    def _add(self, tokens: int, seconds: float) -> None:
        begun = self._begun
        begun[0] += tokens
        begun[1] += seconds
        begun[2] += 1
        if begun[1] >= SAMPLE_S or self.rate is None:
            self._samples.append(Sample(int(begun[0]), begun[1], int(begun[2])))
            self._begun = [0, 0.0, 0]
            self._measure()

    def wait_s(self, tokens: int, now: float, *, free: bool = False) -> float:
        """Seconds until the calls that run and so many tokens after them are answered.

        A call that is overdue is taken to be late by as much again; before there is a rate that is
        all that is known. Where one is `free` to leave at once, no silence of others is its own.
        """
        silent = now - self._since if self._running and not free else 0.0
        if not self.rate:
            return silent
        return tokens / self.rate + abs(self.in_flight / self.rate - silent)

    def call_ends_s(self, tokens: int, now: float) -> float:
        """Seconds until a call that leaves now is answered, where so many tokens could go.

        At the least: one that is overdue may end at once.
        """
        if not self.rate:
            return 0.0
        silent = self._silent_s(now)
        ahead = max(0.0, self.in_flight / self.rate - silent)
        return ahead + min(self.call_s, tokens / self.rate)

    def _measure(self) -> None:
        samples = sorted(self._samples, key=lambda one: one.tokens / max(one.seconds, 1e-9))
        del samples[0]
        if not samples:
            return
        seconds = max(sum(one.seconds for one in samples), 1e-9)
        self.rate = sum(one.tokens for one in samples) / seconds
        self.call_s = seconds / sum(one.calls for one in samples)
