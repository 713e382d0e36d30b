"""The range filters of `get_all`: [least, most], both included, of which one may be null.

Tested by tests/control_plane/test_query.py.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from transformer_serving.control_plane.errors import ApiError, ApiFailure


def range_filter(name: str, wanted: object, texts_too: bool) -> Callable[[object], bool]:
    """A test for the value of one field; `texts_too`: a bound may be a number written as text.

    Without a least one it lets in a document that has no value, as the real server does.
    """
    bounds = wanted if isinstance(wanted, list) else []
    if len(bounds) != 2 or bounds == [None, None]:
        raise ApiError(ApiFailure.VALIDATION, f"{name} must be [least, most], one may be null")
    least, most = (None if one is None else _bound(name, one, texts_too) for one in bounds)

    def test(value: object) -> bool:
        if not isinstance(value, (int, float)):
            return value is None and least is None
        return (least is None or value >= least) and (most is None or value <= most)

    return test


def _bound(name: str, bound: object, texts_too: bool) -> float:
    if texts_too and isinstance(bound, str):
        with suppress(ValueError):
            return float(bound)
    if not isinstance(bound, (int, float)) or isinstance(bound, bool):
        raise ApiError(ApiFailure.FIELD_TYPE, f"{name} must be [least, most] of numbers")
    return bound
