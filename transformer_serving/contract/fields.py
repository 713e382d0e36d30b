"""Reading typed fields out of parsed JSON, with messages that name field, limit and got.

Tested by tests/contract/test_endpoint.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from transformer_serving.contract.errors import ContractError

T = TypeVar("T")


def kind_of(value: object) -> str:
    """The JSON name of a value's type, never the value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an object" if isinstance(value, Mapping) else "a list"


@dataclass(frozen=True)
class Fields:
    """The fields of one JSON object; `where` names the file and the way into it."""

    where: str
    values: Mapping[str, Any]

    def take(self, name: str, kind: type[T], *, default: T | None = None) -> T:
        value = self.values.get(name, default)
        if name not in self.values and default is None:
            raise ContractError(f"{self.where}: field '{name}' is missing")
        # bool is an int to Python, never to us; an int is welcome where a float is wanted.
        if isinstance(value, int) and not isinstance(value, bool) and kind is float:
            return _as_float(self.where, name, value)  # type: ignore[return-value]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ContractError(
                f"{self.where}: field '{name}' must be {kind.__name__}, got {kind_of(value)}"
            )
        return value

    def optional(self, name: str, kind: type[T]) -> T | None:
        return None if self.values.get(name) is None else self.take(name, kind)

    def choice(self, name: str, allowed: Sequence[str], *, default: str | None = None) -> str:
        value = self.take(name, str, default=default)
        if value not in allowed:
            raise ContractError(f"{self.where}: field '{name}' must be one of {', '.join(allowed)}")
        return value

    def number(self, name: str, *, low: int, high: int, default: int | None = None) -> int:
        value = self.take(name, int, default=default)
        if not low <= value <= high:
            raise ContractError(
                f"{self.where}: field '{name}' must be from {low} to {high}, got {value}"
            )
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        values = self.take(name, list)
        if not all(isinstance(value, str) for value in values):
            raise ContractError(f"{self.where}: field '{name}' must be a list of strings")
        return tuple(values)

    def inner(self, name: str) -> Fields:
        return Fields(f"{self.where}.{name}", self.take(name, dict))

    def rows(self, name: str) -> tuple[Fields, ...]:
        values = self.take(name, list)
        for index, value in enumerate(values):
            if not isinstance(value, Mapping):
                raise ContractError(
                    f"{self.where}: field '{name}[{index}]' must be an object, got {kind_of(value)}"
                )
        return tuple(
            Fields(f"{self.where}.{name}[{index}]", value) for index, value in enumerate(values)
        )


def _as_float(where: str, name: str, value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ContractError(
            f"{where}: field '{name}' must be float, got a number beyond it"
        ) from None


def parse_object(text: str | bytes, where: str) -> Fields:
    """The fields of a JSON document. Raises ContractError for anything but an object."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{where}: is not valid JSON") from error
    if not isinstance(values, Mapping):
        raise ContractError(f"{where}: must hold a JSON object, got {kind_of(values)}")
    return Fields(where, values)
