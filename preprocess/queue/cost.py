"""What a call costs the engine: seconds of its own, and seconds for each token. Pure.

Tested by tests/preprocess/test_cost.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# What is taken to be known of the cost before calls of different sizes tell it, as the variance of
# calls' tokens, in squares of their mean, that would weigh as much. Calls of single texts vary by a
# tenth of it, those of single texts and full calls by four times as much.
_BEFOREHAND = 0.25


@dataclass(frozen=True)
class Sample:
    """Calls that were answered in some seconds of work: sums of tokens, seconds and calls, and of
    each call's tokens times its tokens, and times its seconds.
    """

    tokens: float
    seconds: float
    calls: float
    squares: float
    products: float


@dataclass(frozen=True)
class OwnCost:
    """What a call of a kind of engine costs beside its tokens, as tokens; `most_s` at the most."""

    tokens: float
    most_s: float = math.inf


NO_COST = OwnCost(0.0)


@dataclass(frozen=True)
class Cost:
    """Seconds of a call, and of each token in it."""

    call_s: float = 0.0
    token_s: float = 0.0

    def takes_s(self, calls: float, tokens: float) -> float:
        """Seconds of so many calls with so many tokens together."""
        return calls * self.call_s + tokens * self.token_s


def cost_of(samples: Iterable[Sample], own: OwnCost) -> Cost:
    """The straight line through the calls, by least squares with a ridge: drawn towards the one by
    which a call costs its `own` (Hoerl and Kennard, "Ridge regression", 1970), the more, the more
    the calls are alike. Together they take as long by it as they took.
    """
    tokens = seconds = calls = squares = products = 0.0
    for one in samples:
        tokens += one.tokens
        seconds += one.seconds
        calls += one.calls
        squares += one.squares
        products += one.products
    if not tokens:
        return Cost(seconds / calls if calls else 0.0)
    mean = tokens / calls
    beforehand = max(
        seconds / (tokens + calls * own.tokens), (seconds - calls * own.most_s) / tokens
    )
    weight = _BEFOREHAND * tokens * mean
    slope = (products - seconds * mean + weight * beforehand) / (squares - tokens * mean + weight)
    token_s = min(max(0.0, slope), seconds / tokens)
    return Cost((seconds - token_s * tokens) / calls, token_s)
