"""The parameters of a task, declared as rows of a table, and the one reader of them all.

Tested by tests/preprocess/answers/test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of

# To tokenize a text, or to make a row, takes as long as so many of its characters besides.
CHARACTERS_A_TEXT = 16


class Parameters:
    """What a task read of its parameters."""

    # Of the texts among them, each tokenized once.
    characters = 0

    def rows(self, first: Sequence[str], second: Sequence[str]) -> int:
        """What the rows cost that are made of the request's texts, in characters to be tokenized;
        0 where each of them is a row as it was tokenized.
        """
        return 0

    def repeated(self, first: Sequence[str], second: Sequence[str]) -> tuple[str, int]:
        """The field that is tokenized again with each of the request's texts, and its characters
        of all times together.
        """
        return "", 0


@dataclass(frozen=True)
class Kind:
    """What a value must be: the words for it, its limit if it has one, and the test.

    `schema` says it in JSON Schema, as nearly as that can.
    """

    wanted: str
    fits: Callable[[Any], bool]
    limit: int | str | None = None
    schema: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Parameter:
    """One parameter; `default` also stands for null, which is missing where it is `required`."""

    name: str
    kind: Kind
    default: Any = None
    required: bool = False

    def read(self, values: Mapping[str, Any]) -> Any:
        value = values.get(self.name)
        if value is None and self.required:
            raise ServingError("invalid_field", f"field '{self.name}' is missing", field=self.name)
        if value is None:
            return self.default
        if not self.kind.fits(value):
            raise ServingError(
                "invalid_field",
                f"parameter '{self.name}' must be {self.kind.wanted}",
                field=self.name,
                limit=self.kind.limit,
                got=told(value),
            )
        return value


def told(value: Any) -> int | str:
    """What a refusal says that it found: a whole number, as a bound may be just beside it, else the
    kind."""
    # JSON's numbers end nowhere, those of the answer at 64 bits.
    return value if type(value) is int and abs(value) < 2**63 else kind_of(value)


def read_parameters(
    values: Mapping[str, Any],
    table: Sequence[Parameter],
    without_effect: Sequence[Parameter] = (),
    instead: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Every parameter of the table by name. Raises ServingError `invalid_field`.

    What is `without_effect` is checked beside those of every pipeline that are, and not kept;
    `instead` has what to do for names that callers of transformers know and that are not taken.
    """
    harmless = (*_OF_BATCHES, *without_effect)
    known = {row.name for row in (*table, *harmless)}
    for name in values:
        if name not in known:
            raise _unknown(name, table, instead)
    for row in harmless:
        row.read(values)
    return {row.name: row.read(values) for row in table}


def _unknown(
    name: str, table: Sequence[Parameter], instead: Mapping[str, str]
) -> ServingError:  # fmt: skip
    if name in instead:
        # By its name, which is one of ours then and no longer only the caller's.
        told = f"parameter '{name}' is not taken: {instead[name]}"
        return ServingError("invalid_field", told, field=name)
    allowed = ", ".join(row.name for row in table)
    return ServingError(
        "invalid_field",
        f"an unknown parameter; allowed are {allowed}" if table else "no parameter is taken",
        field="parameters",
    )


def _is_padding(value: Any) -> bool:
    return isinstance(value, bool) or value in ("longest", "do_not_pad")


def whole(low: int, high: int | None = None) -> Kind:
    """A whole number; true and false are none."""
    wanted = f"a whole number from {low}" + ("" if high is None else f" to {high}")
    top = float("inf") if high is None else high
    schema = {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})
    return Kind(
        wanted, lambda value: type(value) is int and low <= value <= top, high or low, schema
    )


def number(above: float, most: float) -> Kind:
    """Any number above one and at most the other."""

    def fits(value: Any) -> bool:
        return type(value) in (int, float) and above < value <= most

    schema = {"type": "number", "exclusiveMinimum": above, "maximum": most}
    return Kind(f"a number above {above:g}, at most {most:g}", fits, f"{most:g}", schema)


def between(low: float, high: float) -> Kind:
    """Any number from one to the other, both included."""

    def fits(value: Any) -> bool:
        return type(value) in (int, float) and low <= value <= high

    schema = {"type": "number", "minimum": low, "maximum": high}
    return Kind(f"a number from {low:g} to {high:g}", fits, f"{high:g}", schema)


def choice(names: Sequence[str]) -> Kind:
    """One of some names, in any case, as transformers' enumerations take them."""
    return Kind(
        f"one of {', '.join(names)}",
        lambda value: isinstance(value, str) and value.lower() in names,
        schema={"type": "string", "enum": list(names)},
    )


def text(limit: int) -> Kind:
    """A string of at most `limit` characters."""
    return Kind(
        f"a string of at most {limit} characters, without lone surrogates",
        lambda value: isinstance(value, str) and len(value) <= limit and is_unicode(value),
        limit,
        {"type": "string", "maxLength": limit},
    )


def texts(limit: int) -> Kind:
    """A string or a list of strings, each of at most `limit` characters."""
    one = text(limit)

    def fits(value: Any) -> bool:
        return all(map(one.fits, value)) if isinstance(value, list) else one.fits(value)

    return Kind(
        f"a string or a list of strings, each of at most {limit} characters, without lone "
        "surrogates",
        fits,
        limit,
        {"anyOf": [one.schema, {"type": "array", "items": one.schema}]},
    )


# How a pipeline puts texts together, which changes no answer here: nothing that pads one is in it.
_OF_BATCHES = (
    Parameter("padding", Kind("true, false, longest or do_not_pad", _is_padding)),
    Parameter("batch_size", whole(1)),
)
FLAG = Kind("true or false", lambda value: isinstance(value, bool), schema={"type": "boolean"})


def is_unicode(value: str) -> bool:
    """Whether UTF-8 can carry the text; JSON's \\ud800 alone cannot be tokenized."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
