"""When an answer is the recorded one, and what is said of one that is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from transformer_serving.contract.golden import agrees, disagreement

ROWS = [{"token": 4, "score": 0.5}, {"token": 9, "score": 0.4999}, {"token": 2, "score": 0.1}]


@pytest.mark.parametrize(
    ("answer", "agreed"),
    [
        (ROWS, True),
        ([ROWS[1], ROWS[0], ROWS[2]], True),
        ([ROWS[0], ROWS[0], ROWS[2]], False),
        (ROWS[:2], False),
        ([{**ROWS[0], "score": 0.52}, *ROWS[1:]], False),
        ([{**ROWS[0], "token": 5}, *ROWS[1:]], False),
        ([{**ROWS[0], "score": float("nan")}, *ROWS[1:]], False),
        ({"token": 4}, False),
    ],
)
def test_rows_of_scores_agree_in_any_order(answer: Any, agreed: bool) -> None:
    assert agrees(answer, ROWS, 0.001) is agreed


def test_vectors_keep_their_order_and_large_numbers_a_relative_tolerance() -> None:
    assert agrees([[1.0, 200.0]], [[1.0, 200.1]], 0.001)
    assert not agrees([[1.0, 200.0]], [[1.01, 200.0]], 0.001)
    assert not agrees([1.0, 2.0], [2.0, 1.0], 0.001)


SECRET = "the caller's words"


@pytest.mark.parametrize(
    ("answer", "expected", "said"),
    [
        ([0.9, 0.5], [0.1, 0.5], "its numbers by up to 0.8 where 0.001 is allowed"),
        ([[300.0]], [[200.0]], "its numbers by up to 0.5 where 0.001 is allowed"),
        ({"label": SECRET, "score": 0.5}, {"label": "b", "score": 0.5}, "its texts or its form"),
        (
            {"label": SECRET, "score": 0.7},
            {"label": "b", "score": 0.5},
            "its numbers by up to 0.2 where 0.001 is allowed and its texts or its form",
        ),
        (
            {"label": SECRET, "score": 0.7},
            {"label": SECRET, "score": 0.5},
            "its numbers by up to 0.2 where 0.001 is allowed",
        ),
        ([0.5], [0.5, 0.5], "its texts or its form"),
        (
            [0.9, 0.5],
            [0.1],
            "its numbers by up to 0.8 where 0.001 is allowed and its texts or its form",
        ),
        ({"a": 1}, [1], "its texts or its form"),
        (None, 0.5, "its texts or its form"),
        (True, 1, "its texts or its form"),
        ([float("nan")], [1.0], "its numbers by up to inf where 0.001 is allowed"),
    ],
)
def test_what_is_said_of_a_wrong_answer(answer: Any, expected: Any, said: str) -> None:
    assert not agrees(answer, expected, 0.001)
    told = disagreement(answer, expected, 0.001)
    assert told == f"the answer differs from the recorded one: {said}"
    assert SECRET not in told


ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abs"), inner),
    max_leaves=8,
)


@given(ANSWERS, ANSWERS)
def test_every_answer_agrees_with_itself_and_every_other_one_is_told(one: Any, other: Any) -> None:
    assert agrees(one, one, 0.001)
    if not agrees(one, other, 0.001):
        assert "differs" in disagreement(one, other, 0.001)
