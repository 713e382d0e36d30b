"""What counts as the same answer, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as some

from transformer_serving.gateway.rollout.likeness import are_alike

RANKING = ([3, 1, 2], [9.0, 5.0, 0.0])


def turned(cosine: float) -> Any:
    return np.array([[cosine, (1 - cosine**2) ** 0.5]])


@pytest.mark.parametrize(
    ("kind", "old", "new", "alike"),
    [
        ("words", ["A", "B"], ["A", "B"], True),
        ("words", ["A", "B"], ["A", "C"], False),
        ("words", [[("PER", 0, 4)]], [[]], False),
        ("directions", turned(1.0), turned(0.995), True),
        ("directions", turned(1.0), turned(0.98), False),
        ("directions", turned(1.0), turned(float("nan")), False),
        ("directions", turned(1.0), np.ones((2, 2)), False),
        ("ranked", [RANKING], [([3, 1, 2], [1.0, 0.5, 0.1])], True),
        ("ranked", [RANKING], [([1, 3, 2], [1.0, 0.9, 0.1])], False),
        ("ranked", [([3, 1, 2], [9.0, 8.95, 0.0])], [([1, 3, 2], [9.0, 8.9, 0.0])], True),
        ("ranked", [([3, 1], [9.0, 5.0])], [([3, 7], [9.0, 5.0])], True),
        ("ranked", [([3, 1], [9.0, 5.0])], [([7, 3], [9.0, 5.0])], False),
        ("ranked", [RANKING], [], False),
        ("ranked", [([], [])], [([], [])], True),
        ("ranked", [([], [])], [([3], [9.0])], False),
        ("ranked", [([3], [9.0])], [([], [])], False),
        # Of the best few alone: what one leaves out stands after them.
        ("ranked", [RANKING], [([3, 1], [9.0, 5.0])], True),
        ("ranked", [RANKING], [([1, 2], [5.0, 0.0])], False),
    ],
)
def test_a_gist_is_compared_by_its_kind(kind: str, old: Any, new: Any, alike: bool) -> None:
    assert are_alike((kind, old), (kind, new), 0.99) is alike


def test_two_kinds_are_no_same_answer_and_an_unknown_one_is_not_judged() -> None:
    assert are_alike(("words", []), ("ranked", []), 0.99) is False
    assert are_alike(("words", []), ("later", []), 0.99) is None
    assert are_alike(("later", []), ("words", []), 0.99) is None


@given(some.lists(some.floats(-5, 5), min_size=1, max_size=20), some.randoms())
def test_an_order_is_alike_just_where_no_pair_far_apart_changed_places(
    scores: list[float], random: Any
) -> None:
    names = sorted(range(len(scores)), key=lambda at: -scores[at])
    new = [*names]
    random.shuffle(new)
    span = max(scores) - min(scores)
    wrong = any(
        scores[second] - scores[first] > 0.01 * span
        for at, first in enumerate(new) for second in new[at + 1 :]
    )  # fmt: skip
    old = (names, [scores[name] for name in names])
    assert are_alike(("ranked", [old]), ("ranked", [(new, [0.0] * len(new))]), 1.0) is not wrong
