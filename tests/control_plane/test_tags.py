"""The list filter language, term by term."""

from __future__ import annotations

import pytest

from transformer_serving.control_plane.errors import ApiError
from transformer_serving.control_plane.tags import tag_filter


@pytest.mark.parametrize(
    ("terms", "values", "wanted"),
    [
        ([], [], True),
        (["a"], ["a", "b"], True),
        (["a"], ["b"], False),
        (["a", "b"], ["b"], True),
        (["-archived"], [], True),
        (["-archived"], ["archived", "x"], False),
        (["a", "-b"], ["a"], True),
        (["a", "-b"], ["a", "b"], False),
        (["__$all", "a", "b"], ["a"], False),
        (["__$all", "a", "b"], ["a", "b", "c"], True),
        (["__$and", "a", "b"], ["a", "b"], True),
        (["__$any", "a", "b"], ["b"], True),
        (["__$or", "a", "b"], ["c"], False),
        (["__$not", "a"], ["b"], True),
        (["__$not", "a"], ["a"], False),
        (["__$all", "a", "__$not", "b"], ["a", "b"], False),
        (["__$all", "a", "__$not", "b"], ["a"], True),
        (["__$any", "a", "__$not", "b"], ["c"], True),
        (["__$any", "a", "__$not", "b"], ["b"], False),
        (["__$all", "a", "b", "__$any", "c", "d"], ["a", "b"], False),
        (["__$all", "a", "b", "__$any", "c", "d"], ["a", "b", "d"], True),
        # Behind an operator a dash belongs to the tag, and after __$nop it excludes again.
        (["__$all", "-x"], ["-x"], True),
        (["__$all", "a", "__$nop", "-x"], ["a", "x"], False),
        ([None], [], True),
        ([None], ["a"], False),
        (["a", None], [], True),
        (["a", None], ["b"], False),
    ],
)
def test_terms(terms: list[object], values: list[str], wanted: bool) -> None:
    assert tag_filter("tags", terms)(values) is wanted


@pytest.mark.parametrize("terms", [["__$not"], ["__$not", "__$all"], ["__$odd", "a"], [3]])
def test_refuses_what_means_nothing(terms: list[object]) -> None:
    with pytest.raises(ApiError, match="tags"):
        tag_filter("tags", terms)
