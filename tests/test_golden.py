"""When an answer is the golden one."""

from __future__ import annotations

from typing import Any

import pytest

from transformer_serving.golden import agrees

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
