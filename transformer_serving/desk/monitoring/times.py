"""Every time that an alert has: how far it looks back, and how long its condition must hold.

A rule of three days cannot be seen to fire in a test. So no time stands in an expression: each is a
row here, and all are divided by one scale.

Tested by tests/monitoring/test_rules.py.
"""

from __future__ import annotations

from dataclasses import dataclass

MINUTE, HOUR, DAY, WEEK = 60.0, 3600.0, 86400.0, 604800.0
SCRAPE_S = EVALUATE_S = 15.0
# However much is divided: a page is asked, and the rules are computed, no more often than this.
_LEAST_S = 0.2
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))

PAGE, TICKET = "page", "ticket"


@dataclass(frozen=True)
class Pace:
    """Seconds: `window_s` is looked back over, `hold_s` the condition must hold (`for`).

    `short_s` is a second, shorter look: of objectives what was bad must be so still.
    """

    window_s: float
    hold_s: float
    short_s: float = 0.0


@dataclass(frozen=True)
class BurnRate:
    """How many times faster than allowed an error budget is spent.

    At `factor` 1 the budget of BUDGET_DAYS is spent in these.
    """

    factor: float
    pace: Pace
    severity: str


BUDGET_DAYS = 30
# The share of a budget that is gone by then: 2 %, 5 %, 10 %, 10 %.
BURN_RATES = (
    BurnRate(14.4, Pace(HOUR, 2 * MINUTE, 5 * MINUTE), PAGE),
    BurnRate(6, Pace(6 * HOUR, 15 * MINUTE, 30 * MINUTE), PAGE),
    BurnRate(3, Pace(DAY, HOUR, 2 * HOUR), TICKET),
    BurnRate(1, Pace(3 * DAY, 3 * HOUR, 6 * HOUR), TICKET),
)
# Something is gone, is wrong and stays so, goes on, keeps callers waiting, lasts beyond any load of
# a model, has happened, has happened again and again, is a habit.
GONE = Pace(5 * MINUTE, 2 * MINUTE)
STAYS = Pace(5 * MINUTE, 5 * MINUTE)
GOES_ON = Pace(15 * MINUTE, 10 * MINUTE)
# Looked back over no longer than it must hold: a gauge's mean is of the figures that there are, a
# rate of the whole window, and in a container that is younger they are of different times.
WAITS = Pace(5 * MINUTE, 10 * MINUTE)
LASTS = Pace(HOUR, 30 * MINUTE)
# Of what was there within a week, and of what was not, as long as it may take to come. A page of
# what is gone ends with this time, though it is gone still: a weekend must not be longer.
LOST = Pace(WEEK, 5 * MINUTE)
NOT_YET = Pace(WEEK, 30 * MINUTE)
HAPPENED = Pace(HOUR, 0.0)
AGAIN = Pace(HOUR, 0.0, 15 * MINUTE)
HABIT = Pace(HOUR, HOUR)


@dataclass(frozen=True)
class TimeScale:
    """All times of the table divided by `divisor`, 1 in service."""

    divisor: float = 1.0

    def seconds(self, seconds: float) -> float:
        return seconds / self.divisor

    def text(self, seconds: float) -> str:
        """As Prometheus writes a duration, such as 1h or 833ms; never less than a millisecond."""
        left = max(1, round(1000 * self.seconds(seconds)))
        text = ""
        for unit, size in _UNITS:
            count, left = divmod(left, size)
            text += f"{count}{unit}" if count else ""
        return text

    def interval(self, seconds: float) -> str:
        """Likewise, of something that is done again and again."""
        return self.text(max(seconds, _LEAST_S * self.divisor))
