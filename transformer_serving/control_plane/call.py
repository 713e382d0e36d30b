"""One API call as a handler sees it: checked access to its fields, and what it may use.

Tested by tests/control_plane/test_api.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import cast

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.files.store import FileStore
from transformer_serving.control_plane.order import order
from transformer_serving.control_plane.query import (
    Filters,
    exact_values,
    page_of,
    predicates,
    project_fields,
    select,
)
from transformer_serving.control_plane.schema import check
from transformer_serving.control_plane.scroll import Scrolls
from transformer_serving.control_plane.store import Document, Kind, Store, Transaction

_BATCH_LIMIT = 500


@dataclass(frozen=True)
class Services:
    """What outlives a call."""

    store: Store
    files: FileStore
    scrolls: Scrolls


@dataclass(frozen=True)
class Call:
    """A request's data: the JSON object, or the list of objects of a json-lines batch."""

    data: Document
    batch: list[Document]
    services: Services
    host: str
    worker: str = ""

    @property
    def store(self) -> Store:
        return self.services.store

    def text(self, name: str) -> str:
        """A required text field."""
        value = self.data.get(name)
        if value is None:
            raise ApiError(ApiFailure.MISSING_FIELDS, name)
        check(name, value, "text")
        return cast(str, value)

    def optional_text(self, name: str, default: str = "") -> str:
        return self.text(name) if self.data.get(name) is not None else default

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.data.get(name)
        if value is None:
            return default
        check(name, value, "boolean")
        return cast(bool, value)

    def number(self, name: str, default: int) -> int:
        value = self.data.get(name)
        if value is None:
            return default
        check(name, value, "integer")
        return cast(int, value)

    def objects(self, name: str) -> list[Document]:
        """A required list of objects."""
        value = self.data.get(name)
        if value is None:
            raise ApiError(ApiFailure.MISSING_FIELDS, name)
        check(name, value, "list of objects")
        return cast(list[Document], value)

    def texts(self, name: str) -> list[str]:
        """A required list of text, as the `*_many` methods take."""
        value = self.data.get(name)
        if value is None:
            raise ApiError(ApiFailure.MISSING_FIELDS, name)
        check(name, value, "list of text")
        return cast(list[str], value)


Handler = Callable[[Call], Document]


def get_all(
    call: Call,
    kind: Kind,
    filters: Filters,
    keep: Callable[[Document], bool] = lambda _document: True,
) -> Document:
    """The answer of every `get_all`: select, order, page or scroll, project."""
    tests = [keep, *predicates(filters, call.data)]
    exact = exact_values(call.data, ("id", *kind.indexed))
    only = call.data.get("only_fields")
    with call.store.reading() as transaction:
        with closing(transaction.find(kind, exact)) as documents:
            found = order(select(documents, tests), call.data.get("order_by"))
        if "scroll_id" in call.data or call.data.get("size") is not None:
            part, scroll = call.services.scrolls.advance(found, call.data)
        else:
            page = page_of(call.data)
            part, scroll = found[page.start : page.start + page.size], None
        asked_for = (transaction.get(kind, identity) for identity in part)
        shaped = [project_fields(document, only) for document in asked_for if document]
    answer: Document = {f"{kind.table}s": shaped}
    if scroll is not None:
        answer["scroll_id"] = scroll
    return answer


def each(call: Call, work: Callable[[Transaction, str], Mapping[str, object]]) -> Document:
    """The answer of the `*_many` methods: every id for itself, failures reported by id."""
    ids = call.texts("ids")
    if not ids:
        raise ApiError(ApiFailure.BATCH_EMPTY, "ids")
    if len(ids) > _BATCH_LIMIT:
        raise ApiError(ApiFailure.VALIDATION, f"ids: at most {_BATCH_LIMIT}, got {len(ids)}")
    succeeded: list[Document] = []
    failed: list[Document] = []
    for identity in ids:
        try:
            with call.store.writing() as transaction:
                succeeded.append({"id": identity, **work(transaction, identity)})
        except ApiError as error:
            failed.append({"id": identity, "error": error_fields(error)})
    return {"succeeded": succeeded, "failed": failed}


def error_fields(error: ApiError) -> Document:
    codes: list[object] = [error.failure.status, error.failure.subcode]
    return {"codes": codes, "msg": str(error), "data": error.data}
