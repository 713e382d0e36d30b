"""The list filter language of `get_all`: plain values, "-value" and the "__$..." operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from transformer_serving.control_plane.errors import ApiError, ApiFailure

ListTest = Callable[[Collection[str]], bool]

_ALL = frozenset({"__$all", "__$and"})
_ANY = frozenset({"__$any", "__$or"})


@dataclass
class _Terms:
    """What a filter asks for; `every` joins the three groups with and, otherwise with or."""

    every: bool | None = None
    all_of: list[str] = field(default_factory=list)
    any_of: list[str] = field(default_factory=list)
    none_of: list[str] = field(default_factory=list)
    empty_too: bool = False


def tag_filter(name: str, terms: Sequence[object]) -> ListTest:
    """A test for the values of one field. The first operator also decides how groups join."""
    wanted = _read(name, terms)

    def test(values: Collection[str]) -> bool:
        present = set(values)
        if wanted.empty_too and not present:
            return True
        groups: list[bool] = []
        if wanted.all_of:
            groups.append(present.issuperset(wanted.all_of))
        if wanted.any_of:
            groups.append(not present.isdisjoint(wanted.any_of))
        if wanted.none_of:
            groups.append(present.isdisjoint(wanted.none_of))
        if not groups:
            return not wanted.empty_too
        return any(groups) if wanted.every is False else all(groups)

    return test


def _read(name: str, terms: Sequence[object]) -> _Terms:
    wanted, context = _Terms(), _Context()
    for term in terms:
        if term is None:
            wanted.empty_too, context.negated = True, False
        elif not isinstance(term, str):
            raise ApiError(ApiFailure.FIELD_VALUE, f"{name} must hold text only")
        elif term.startswith("__$"):
            _operator(name, term, wanted, context)
        else:
            _value(term, wanted, context)
    if context.negated:
        raise ApiError(ApiFailure.FIELD_VALUE, f"{name}: a value is expected after __$not")
    return wanted


@dataclass
class _Context:
    """What the operators read so far say of the values that follow."""

    every: bool = False
    negated: bool = False
    dashes: bool = True


def _operator(name: str, term: str, wanted: _Terms, context: _Context) -> None:
    if context.negated:
        raise ApiError(ApiFailure.FIELD_VALUE, f"{name}: a value is expected after __$not")
    if term == "__$not":
        context.negated = True
    elif term == "__$nop":
        context.every, context.dashes = False, True
    elif term in _ALL or term in _ANY:
        # Behind an operator a leading dash is part of the value.
        context.every, context.dashes = term in _ALL, False
        wanted.every = context.every if wanted.every is None else wanted.every
    else:
        raise ApiError(ApiFailure.FIELD_VALUE, f"{name}: unsupported operator")


def _value(term: str, wanted: _Terms, context: _Context) -> None:
    # A value before the first operator joins the groups with and, whatever operator follows.
    if wanted.every is None:
        wanted.every = True
    if context.negated:
        wanted.none_of.append(term)
    elif context.dashes and term.startswith("-"):
        wanted.none_of.append(term[1:])
    elif context.every:
        wanted.all_of.append(term)
    else:
        wanted.any_of.append(term)
    context.negated = False
