"""The kind of an option that takes a number with a fraction.

Tested by tests/cli/test_options.py.
"""

from __future__ import annotations

import math
from typing import Any

import click


class Number(click.FloatRange):
    """A range that has no room for nan, either, which no bound is above; it has both bounds."""

    def __init__(self, low: float, high: float, *, min_open: bool = False) -> None:
        super().__init__(low, high, min_open=min_open)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is no number.", param, ctx)
        return number
