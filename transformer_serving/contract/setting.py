"""One environment variable that an operator sets, as a row of its part's table.

Tested by tests/gateway/test_settings.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Setting:
    """Its name, default and bounds, and the sentence for the docs."""

    name: str
    default: str
    low: float
    high: float
    help: str

    def number(self, environment: Mapping[str, str]) -> float:
        """Raises ValueError naming the variable."""
        try:
            number = float(environment.get(self.name) or self.default)
        except ValueError:
            number = math.nan
        if not self.low <= number <= self.high:
            raise ValueError(f"{self.name} must be a number from {self.low} to {self.high:.0f}")
        return number
