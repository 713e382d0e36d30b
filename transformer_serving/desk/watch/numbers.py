"""Numbers and rows of numbers in few characters.

Tested by tests/watch/test_screen.py.
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-:=+*#"
UNKNOWN = "-"


def short(value: float | None) -> str:
    """Three digits of what is no whole number, above a thousand with k, M or G."""
    if value is None:
        return UNKNOWN
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        # What would be rounded up to it is written so too.
        if value >= size * 0.9995:
            return _three(value / size) + unit
    return _three(value)


def milliseconds(seconds: float | None) -> str:
    """Seconds of a minute are still five digits."""
    if seconds is None:
        return UNKNOWN
    value = 1000 * seconds
    return _three(value) if value < 99.95 else f"{value:.0f}"


def _three(value: float) -> str:
    if value == int(value):
        return f"{value:.0f}"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def sparkline(values: Sequence[float | None], width: int, ramp: str = BLOCKS) -> str:
    """The last `width` values between 0 and the greatest of them; a blank where one is unknown."""
    last = list(values)[-width:]
    most = max((value for value in last if value is not None), default=0.0)
    return "".join(" " if value is None else _step(value, most, ramp) for value in last)


def _step(value: float, most: float, ramp: str) -> str:
    return ramp[min(int(value / most * len(ramp)), len(ramp) - 1)] if value > 0 else ramp[0]
