"""How `get_all` selects, pages and projects documents: the real server's rules."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import regex

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.ranges import range_filter
from transformer_serving.control_plane.store import Document
from transformer_serving.control_plane.tags import tag_filter
from transformer_serving.control_plane.text_search import text_search

Predicate = Callable[[Document], bool]

MAX_PAGE = 500
# A pattern comes from the caller and may backtrack: what all documents of one filter may cost it,
# and the longest that is compiled.
_PATTERN_SECONDS = 2.0
_PATTERN_LENGTH = 10_000
_LIST_PREFIXES = ("hyperparams.", "models.", "metadata.")
_RANGE_PREFIX = "last_metrics."
_COMPARISON = re.compile(r"^(>=|>|<=|<|==?)?(.*)$", re.DOTALL)
_PATTERN_GROUPS: dict[str, Callable[[Iterable[bool]], bool]] = {
    "_any_": any,
    "_or_": any,
    "_all_": all,
    "_and_": all,
}


@dataclass(frozen=True)
class Filters:
    """Which request fields filter a collection, and how each compares."""

    patterns: tuple[str, ...]
    lists: tuple[str, ...]
    dates: tuple[str, ...] = ()
    equal: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    # Where `search_text` looks.
    texts: tuple[str, ...] = ("name", "id")


@dataclass(frozen=True)
class Page:
    """A slice of the ordered result."""

    start: int
    size: int


def value_at(document: Mapping[str, object], path: str) -> object:
    """The value at a dotted path; a list on the way gives the list of what its items hold."""
    value: object = document
    for name in path.split("."):
        if isinstance(value, list):
            value = [item.get(name) for item in value if isinstance(item, dict)]
        elif isinstance(value, Mapping):
            value = value.get(name)
        else:
            return None
    return value


def predicates(filters: Filters, request: Mapping[str, object]) -> list[Predicate]:
    """The tests of the request's filtering fields; other fields and nulls filter nothing."""
    given = [(field, wanted) for field, wanted in request.items() if wanted is not None]
    return [test for field, wanted in given for test in _tests(filters, field, wanted)]


def _tests(filters: Filters, field: str, wanted: object) -> list[Predicate]:
    if field in filters.patterns:
        # An empty one asks for nothing, also where a document has no such field.
        text = _text(field, wanted)
        return [_pattern((field,), text, 0, any)] if text else []
    if field in filters.lists or field.startswith(_LIST_PREFIXES):
        return [_tags(field, wanted)]
    if field in filters.dates:
        return _dates(field, wanted)
    if field in filters.ranges or field.startswith(_RANGE_PREFIX):
        return [_range(field, wanted)]
    if field in filters.equal or field.startswith("runtime."):
        return [_equal(field, wanted)]
    if field in _PATTERN_GROUPS:
        return [_pattern_group(field, wanted)]
    if field == "search_text":
        text = _text(field, wanted)
        return [_words(filters.texts, text)] if text else []
    return []


def select(documents: Iterable[Document], tests: Sequence[Predicate]) -> Iterator[Document]:
    return (document for document in documents if all(test(document) for test in tests))


def exact_values(request: Mapping[str, object], fields: Sequence[str]) -> dict[str, list[str]]:
    """Fields whose filter is a plain list of values, which an index can answer."""
    exact: dict[str, list[str]] = {}
    for field in fields:
        values = request.get(field)
        if not isinstance(values, list) or not values:
            continue
        if all(isinstance(v, str) and not v.startswith(("-", "__$")) for v in values):
            exact[field] = values
    return exact


def page_of(request: Mapping[str, object]) -> Page:
    page, size = _number(request, "page", 0, 0), _number(request, "page_size", MAX_PAGE, 1)
    size = min(size, MAX_PAGE)
    return Page(page * size, size)


def project_fields(document: Document, only_fields: object) -> Document:
    """The fields asked for and the id; names with a leading '-' are left out instead."""
    if not only_fields:
        return document
    names = [only_fields] if isinstance(only_fields, str) else only_fields
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ApiError(ApiFailure.FIELD_TYPE, "only_fields must be a list of field names")
    wanted = [name for name in names if not name.startswith("-")]
    unwanted = {name[1:] for name in names if name.startswith("-")}
    if not wanted:
        return {name: value for name, value in document.items() if name not in unwanted}
    result: Document = {"id": document["id"]}
    for name in wanted:
        _copy(document, result, name.split("."))
    return result


def _copy(source: object, target: Document, path: Sequence[str]) -> None:
    head, rest = path[0], path[1:]
    # A list may be one of texts, which have nothing inside.
    if not isinstance(source, Mapping) or head not in source:
        return
    value = source[head]
    if not rest or not isinstance(value, (dict, list)):
        target[head] = value
        return
    if isinstance(value, dict):
        inner = target.setdefault(head, {})
        _copy(value, cast(Document, inner), rest)
        return
    items = cast(list[Document], target.setdefault(head, [{} for _ in value]))
    for item, copy in zip(value, items, strict=True):
        _copy(item, copy, rest)


def _tags(field: str, wanted: object) -> Predicate:
    test = tag_filter(field, wanted if isinstance(wanted, list) else [wanted])
    return lambda document: test(_values(value_at(document, field)))


def _pattern_group(field: str, wanted: object) -> Predicate:
    fields = wanted.get("fields") if isinstance(wanted, dict) else None
    if not isinstance(wanted, dict) or not isinstance(fields, list):
        raise ApiError(ApiFailure.FIELD_VALUE, f"{field} must be an object with fields and pattern")
    pattern = _text(f"{field}.pattern", wanted.get("pattern"))
    names = tuple(_text(f"{field}.fields", name) for name in fields)
    return _pattern(names, pattern, regex.IGNORECASE, _PATTERN_GROUPS[field])


def _pattern(
    fields: Sequence[str], text: str, flags: int, join: Callable[[Iterable[bool]], bool]
) -> Predicate:
    names = ", ".join(fields)
    if len(text) > _PATTERN_LENGTH:
        raise ApiError(
            ApiFailure.REGEX, f"{names}: at most {_PATTERN_LENGTH} letters, got {len(text)}"
        )
    try:
        pattern = regex.compile(text, flags | regex.VERSION0)
    except (regex.error, RecursionError, OverflowError, ValueError) as error:
        # ValueError: of flags, and of numbers that are longer than Python reads.
        fault = getattr(error, "msg", "too large, or its flags exclude one another")
        raise ApiError(ApiFailure.REGEX, f"{names}: {fault}") from error
    left = _PATTERN_SECONDS

    def found(value: str) -> bool:
        nonlocal left
        begun = time.monotonic()
        try:
            # Without the interpreter's lock, so that other calls go on.
            return pattern.search(value, timeout=max(left, 0.001), concurrent=True) is not None
        except TimeoutError as error:
            raise ApiError(
                ApiFailure.REGEX,
                f"{names}: takes more than {_PATTERN_SECONDS:g} s, make it simpler",
            ) from error
        finally:
            left -= time.monotonic() - begun

    def test(document: Document) -> bool:
        return join(
            any(found(value) for value in _values(value_at(document, field))) for field in fields
        )

    return test


def _words(fields: Sequence[str], text: str) -> Predicate:
    test = text_search(text)
    return lambda document: test(
        [value for field in fields for value in _values(value_at(document, field))]
    )


def _equal(field: str, wanted: object) -> Predicate:
    return lambda document: value_at(document, field) == wanted


def _range(field: str, wanted: object) -> Predicate:
    test = range_filter(field, wanted, texts_too=field.startswith(_RANGE_PREFIX))
    return lambda document: test(value_at(document, field))


def _dates(field: str, wanted: object) -> list[Predicate]:
    bounds = wanted if isinstance(wanted, list) else [wanted]
    if len(bounds) == 2 and not any(str(b).startswith((">", "<", "=")) for b in bounds):
        bounds = [f"{sign}{b}" for sign, b in zip((">=", "<="), bounds, strict=True) if b]
    return [_date(field, _text(field, bound)) for bound in bounds if bound]


def _date(field: str, bound: str) -> Predicate:
    matched = cast(re.Match[str], _COMPARISON.match(bound))
    sign, limit = matched[1] or "=", _moment(matched[2])
    if limit is None:
        raise ApiError(ApiFailure.FIELD_VALUE, f"{field} must be an ISO 8601 date")

    def test(document: Document) -> bool:
        moment = _moment(value_at(document, field))
        return moment is not None and _COMPARE[sign](moment, limit)

    return test


_COMPARE: dict[str, Callable[[datetime, datetime], bool]] = {
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
}


def _moment(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _values(value: object) -> list[str]:
    if value is None or value == "":
        return []
    return [str(v) for v in value] if isinstance(value, list) else [str(value)]


def _text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise ApiError(ApiFailure.FIELD_TYPE, f"{field} must be text, got {type(value).__name__}")
    return value


def _number(request: Mapping[str, object], field: str, default: int, least: int) -> int:
    value = request.get(field)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ApiError(ApiFailure.VALIDATION, f"{field} must be a number of at least {least}")
    return value
