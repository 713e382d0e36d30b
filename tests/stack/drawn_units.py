"""A panel's numbers as they are written: by the name that Grafana has for their unit."""

from __future__ import annotations

from collections.abc import Callable


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    size, name = next(((size, name) for size, name in steps if abs(value) >= size), steps[-1])
    return f"{value / size:.3g}{name}" if value else "0"


_TIMES = (
    (86400.0, " d"),
    (3600.0, " h"),
    (60.0, " min"),
    (1.0, " s"),
    (1e-3, " ms"),
    (1e-6, " µs"),
)
_BYTES = ((2.0**30, " GiB"), (2.0**20, " MiB"), (2.0**10, " KiB"), (1.0, " B"))
_NUMBERS = ((1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, ""))
UNITS: dict[str, Callable[[float], str]] = {
    "s": lambda value: _scaled(value, _TIMES),
    "bytes": lambda value: _scaled(value, _BYTES),
    "short": lambda value: _scaled(value, _NUMBERS),
    "reqps": lambda value: f"{_scaled(value, _NUMBERS)}/s",
    "ops": lambda value: f"{_scaled(value, _NUMBERS)}/s",
    "percentunit": lambda value: f"{100 * value:.4g} %",
    "watt": lambda value: f"{value:.3g} W",
    "sci": lambda value: f"{value:.2g}",
}
