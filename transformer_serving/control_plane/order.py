"""How `get_all` orders documents: the real server's rules.

Tested by tests/control_plane/test_query.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, cast

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.query import value_at
from transformer_serving.control_plane.store import Document


def order(documents: Iterable[Document], order_by: object) -> list[str]:
    """Their ids, sorted by every key of order_by, then by id, so that pages never overlap.

    Where the first key ascends, what has nothing under it comes last all the same: one that never
    told a figure is not the best by the least. Of each document only what it is sorted by is held:
    all together may not fit into memory.
    """
    keys = [order_by] if isinstance(order_by, str) else order_by or []
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ApiError(ApiFailure.FIELD_TYPE, "order_by must be a list of field names")
    keys = [key for key in keys if key != "@text_score"]
    names = [key.removeprefix("-") for key in keys]
    found: list[tuple[Any, ...]] = [
        (cast(str, document["id"]), *(_sort_value(value_at(document, name)) for name in names))
        for document in documents
    ]
    found.sort(key=itemgetter(0))
    for at, key in reversed(list(enumerate(keys, start=1))):
        found.sort(key=itemgetter(at), reverse=key.startswith("-"))
    if keys and not keys[0].startswith("-"):
        found.sort(key=lambda one: one[1] in _NOTHING)
    return [one[0] for one in found]


def _sort_value(value: object) -> tuple[int, float, str]:
    """Missing before numbers before text, as the real server's database orders them."""
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, (int, float)):
        return (1, float(value), "")
    return (2, 0.0, str(value))


_EMPTY: tuple[object, ...] = (None, "", [])
_NOTHING = frozenset(map(_sort_value, _EMPTY))
