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


@dataclass(frozen=True)
class Sample:
    """What was answered in some seconds of work."""

    tokens: int
    seconds: float
    calls: int


class Pace:
    """`rate` is tokens a second, None before the second answer; `call_s` what a call adds to the
    time until the engine is done. `calls` are those that run, `in_flight` their tokens.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self.call_s = 0.0
        self.calls = 0
        self.in_flight = 0
        self._since = 0.0
        self._samples: deque[Sample] = deque(maxlen=_SAMPLES)
        self._begun: list[float] = [0, 0.0, 0]

    def begin(self, tokens: int, now: float) -> None:
        """A call goes to the engine."""
        if not self.calls:
            self._since = now
        self.calls += 1
        self.in_flight += tokens

    def end(self, tokens: int, now: float, *, answered: bool) -> None:
        """It is back; time that ended in an error says nothing of the rate."""
        seconds = now - self._since
        self._since = now
        self.calls -= 1
        self.in_flight -= tokens
        if not answered:
            return
        begun = self._begun
        begun[0] += tokens
        begun[1] += seconds
        begun[2] += 1
        if begun[1] >= SAMPLE_S or self.rate is None:
            self._samples.append(Sample(int(begun[0]), begun[1], int(begun[2])))
            self._begun = [0, 0.0, 0]
            self._measure()

    def drop(self, tokens: int) -> None:
        """It was given up before it was begun: neither work nor time."""
        self.calls -= 1
        self.in_flight -= tokens

    def wait_s(self, tokens: int, now: float) -> float:
        """Seconds until the calls that run and so many tokens after them are answered.

        A call that is overdue is taken to be late by as much again; before there is a rate that is
        all that is known.
        """
        silent = now - self._since if self.calls else 0.0
        if not self.rate:
            return silent
        return tokens / self.rate + abs(self.in_flight / self.rate - silent)

    def call_ends_s(self, tokens: int, now: float) -> float:
        """Seconds until a call that leaves now is answered, where so many tokens could go."""
        if not self.rate:
            return 0.0
        return self.wait_s(0, now) + min(self.call_s, tokens / self.rate)

    def _measure(self) -> None:
        samples = sorted(self._samples, key=lambda one: one.tokens / max(one.seconds, 1e-9))
        del samples[0]
        if not samples:
            return
        seconds = max(sum(one.seconds for one in samples), 1e-9)
        self.rate = sum(one.tokens for one in samples) / seconds
        self.call_s = seconds / sum(one.calls for one in samples)
