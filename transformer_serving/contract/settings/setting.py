"""One environment variable that an operator sets, as a row of its part's table.

Tested by tests/gateway/test_settings.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from transformer_serving.contract.naming import NameRule, name_fault

_NUMBER = r"^(\+?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?)?$"
# Templates write a large whole number as 2e+07.
_WHOLE = r"^(\+?[0-9]+(\.0*)?([eE]\+?[0-9]+)?)?$"


@dataclass(frozen=True)
class TextSetting:
    """Its name and default, the sentence for the docs, and what it must be one of, or what a name
    in it must be, if so; no text is no name."""

    name: str
    default: str
    help: str
    choices: tuple[str, ...] = ()
    rule: NameRule | None = None

    def text(self, environment: Mapping[str, str]) -> str:
        """Raises ValueError naming the variable."""
        text = environment.get(self.name) or self.default
        if self.choices and text not in self.choices:
            raise ValueError(f"{self.name} must be one of {', '.join(self.choices)}")
        if text and self.rule and (fault := name_fault(text, self.rule)):
            raise ValueError(f"{self.name} {fault}")
        return text


@dataclass(frozen=True)
class Setting:
    """A number: its name, default and bounds, and the sentence for the docs."""

    name: str
    default: str
    low: float
    high: float
    help: str
    is_whole: bool = False

    @property
    def pattern(self) -> str:
        """Of its text, also for who can hold a text to that alone; empty is the default."""
        return _WHOLE if self.is_whole else _NUMBER

    def number(self, environment: Mapping[str, str]) -> float:
        """Raises ValueError naming the variable."""
        number = self._read((environment.get(self.name) or self.default).strip())
        if not self.low <= number <= self.high:
            kind = "a whole number" if self.is_whole else "a number"
            raise ValueError(
                f"{self.name} must be {kind} from {self.low} to {self.high:.0f}: set one, or none"
            )
        return number

    def whole(self, environment: Mapping[str, str]) -> int:
        """Of a row that is one. Raises ValueError naming the variable."""
        return int(self.number(environment))

    def _read(self, text: str) -> float:
        return float(text) if text and re.fullmatch(self.pattern, text) else math.nan
