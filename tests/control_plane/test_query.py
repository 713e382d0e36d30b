"""Selecting, ordering, paging and projecting documents."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.order import order
from transformer_serving.control_plane.query import (
    Filters,
    page_of,
    predicates,
    project_fields,
    select,
    value_at,
)

FILTERS = Filters(
    patterns=("name",),
    lists=("id", "tags", "execution.queue"),
    dates=("created",),
    equal=("ready",),
    ranges=("last_iteration",),
    texts=("name", "comment", "execution.artifacts.key"),
)
DOCUMENTS: list[dict[str, Any]] = [
    {
        "id": "1",
        "name": "Transformer ONNX",
        "tags": ["a"],
        "created": "2026-01-01T00:00:00+00:00",
        "ready": True,
        "runtime": {"version": "1.3.5"},
        "execution": {"artifacts": [{"key": "k", "uri": "u"}, {"key": "l"}]},
        "last_iteration": 5,
    },
    {
        "id": "2",
        "name": "other",
        "tags": [],
        "created": "2026-02-01T00:00:00",
        "comment": "deep",
        "last_iteration": 10,
        "last_metrics": {"m": {"v": {"value": 0.5}}},
    },
    {
        "id": "3",
        "name": "Transformer",
        "tags": ["a", "b"],
        "created": "2026-03-01T00:00:00+00:00",
        "execution": {"queue": "q"},
    },
]


def found(**request: Any) -> str:
    return "".join(str(d["id"]) for d in select(DOCUMENTS, predicates(FILTERS, request)))


@pytest.mark.parametrize(
    ("request_fields", "wanted"),
    [
        ({}, "123"),
        ({"name": "^Transformer\\ ONNX$"}, "1"),
        ({"name": "former"}, "13"),
        ({"name": "transformer"}, ""),
        ({"name": None, "unknown": 1}, "123"),
        ({"id": ["1", "3"]}, "13"),
        ({"id": []}, "123"),
        ({"tags": ["-b"]}, "12"),
        ({"ready": True}, "1"),
        ({"runtime.version": "1.3.5"}, "1"),
        ({"created": [">=2026-02-01T00:00:00"]}, "23"),
        ({"created": [">2026-01-01T00:00:00+00:00", "<2026-03-01"]}, "2"),
        ({"created": ["2026-01-15", "2026-02-15"]}, "2"),
        ({"created": "<=2026-01-01T00:00:00Z"}, "1"),
        ({"_any_": {"fields": ["name", "comment"], "pattern": "OTHER|DEEP"}}, "2"),
        ({"_all_": {"fields": ["name", "id"], "pattern": "1|former"}}, "1"),
        ({"last_iteration": [5, 9]}, "1"),
        ({"last_iteration": [6, None]}, "2"),
        ({"last_iteration": [None, 5.5]}, "13"),
        ({"last_metrics.m.v.value": ["0.5", 0.5]}, "2"),
        ({"last_metrics.m.v.value": [None, 0.4]}, "13"),
        ({"execution.queue": ["q"]}, "3"),
        ({"execution.queue": ["-q"]}, "12"),
        ({"search_text": "onnx"}, "1"),
        ({"search_text": "o.nx"}, ""),
        ({"search_text": "deep onnx"}, "12"),
        ({"search_text": "K"}, "1"),
        ({"search_text": "former"}, ""),
        ({"search_text": ""}, "123"),
    ],
)
def test_filters(request_fields: dict[str, Any], wanted: str) -> None:
    assert found(**request_fields) == wanted


def test_an_empty_pattern_asks_for_nothing() -> None:
    assert not predicates(FILTERS, {"name": ""})


@pytest.mark.parametrize(
    ("request_fields", "field"),
    [
        ({"name": "("}, "name"),
        ({"name": 3}, "name"),
        ({"created": "soon"}, "created"),
        ({"last_iteration": 5}, "last_iteration"),
        ({"last_iteration": [5]}, "last_iteration"),
        ({"last_iteration": [None, None]}, "last_iteration"),
        ({"last_iteration": ["5", None]}, "last_iteration"),
        ({"last_metrics.m.v.value": ["much", None]}, "last_metrics"),
        ({"_any_": "x"}, "_any_"),
        ({"_any_": {"fields": ["name"]}}, "_any_.pattern"),
    ],
)
def test_refuses_a_malformed_filter(request_fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError, match=field):
        found(**request_fields)


def test_orders_by_several_keys_and_what_has_none_of_the_first_last() -> None:
    documents: list[dict[str, Any]] = [
        {"id": "1", "iter": 10, "name": "x"},
        {"id": "2", "iter": 9, "name": "x"},
        {"id": "3", "name": "x"},
        {"id": "4", "iter": 9, "name": "a"},
    ]
    assert order(documents, ["iter", "-name"]) == ["2", "4", "1", "3"]
    assert order(documents, ["@text_score", "iter"]) == ["2", "4", "1", "3"]
    assert order(documents, ["name", "iter"]) == ["4", "3", "2", "1"]
    assert order(documents, "-iter") == ["1", "2", "4", "3"]
    assert order(documents, None) == ["1", "2", "3", "4"]


def test_an_empty_text_or_list_is_no_value_to_order_by() -> None:
    documents: list[dict[str, Any]] = [
        {"id": "1", "name": "", "tags": []},
        {"id": "2", "name": "x", "tags": ["a"]},
        {"id": "3", "name": None},
    ]
    assert order(documents, "name") == order(documents, "tags") == ["2", "3", "1"]
    assert order(documents, "-name") == ["2", "1", "3"]


def test_pages() -> None:
    page = page_of({"page": 2, "page_size": 10})
    assert (page.start, page.size) == (20, 10)
    assert page_of({}).size == page_of({"page_size": 9999}).size == 500


@pytest.mark.parametrize("request_fields", [{"page": -1}, {"page_size": 0}, {"page": "1"}])
def test_refuses_a_page_that_is_none(request_fields: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="page"):
        page_of(request_fields)


def test_projection_keeps_the_id_and_the_structure() -> None:
    assert project_fields(DOCUMENTS[0], ["name"]) == {"id": "1", "name": "Transformer ONNX"}
    assert project_fields(DOCUMENTS[0], ["execution.artifacts.key", "runtime.none"]) == {
        "id": "1",
        "execution": {"artifacts": [{"key": "k"}, {"key": "l"}]},
        "runtime": {},
    }
    assert project_fields(DOCUMENTS[0], ["tags.of.nothing"]) == {"id": "1", "tags": [{}]}
    assert "name" not in project_fields(DOCUMENTS[0], ["-name"])
    assert project_fields(DOCUMENTS[0], []) is DOCUMENTS[0]


def test_projection_of_a_whole_and_of_its_part() -> None:
    for names in (
        ["execution", "execution.artifacts.key"],
        ["execution.artifacts.key", "execution"],
    ):
        assert project_fields(DOCUMENTS[0], names)["execution"] == DOCUMENTS[0]["execution"]


def test_value_at_goes_through_lists() -> None:
    assert value_at(DOCUMENTS[0], "execution.artifacts.key") == ["k", "l"]
    assert value_at(DOCUMENTS[0], "name.first") is None


LONG: list[dict[str, object]] = [{"id": "1", "name": "a" * 60 + "!"}]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["(a|aa)+$", "^(a|aa|aaa)+[b-z]$", r"(.|..)+\d$"])
def test_a_pattern_that_backtracks_is_refused(pattern: str) -> None:
    """It is given up, and other threads go on meanwhile."""
    turns = 0
    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(lambda: list(select(LONG, predicates(FILTERS, {"name": pattern}))))
        while not searching.done():
            turns += 1
            time.sleep(0.001)
        error = searching.exception()
    assert isinstance(error, ApiError)
    assert error.failure is ApiFailure.REGEX
    assert "takes more than 2 s" in str(error)
    assert turns > 20


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("(a+)+$", []),
        ("(aa?)+$", []),
        ("^(([a-z])+.)+[A-Z]([a-z])+$", []),
        # At the end, by the empty text.
        ("(a|a?)+$", LONG),
    ],
)
def test_what_another_engine_would_be_lost_in_ends_soon(
    pattern: str, found: list[dict[str, object]]
) -> None:
    assert list(select(LONG, predicates(FILTERS, {"name": pattern}))) == found


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", "a" * 10_001, "(?P<a", "[", "*"),
        *("(?V1)a", "(?a)(?u)b", "(?au)a", f"a{{{'9' * 5000}}}"),
    ],
)
def test_what_is_no_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ApiError) as caught:
        predicates(FILTERS, {"name": pattern})
    assert caught.value.failure is ApiFailure.REGEX
