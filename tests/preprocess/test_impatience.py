"""Who leaves soon, of how many, and for how long that is remembered."""

from __future__ import annotations

import pytest

from preprocess.queue.impatience import SOON_S, Impatience


def seen(came: int, left: int, age_s: float, now: float = 100.0) -> Impatience:
    impatience = Impatience()
    for _ in range(came):
        impatience.came(now)
    for _ in range(left):
        impatience.left(age_s, now)
    return impatience


@pytest.mark.parametrize(
    ("came", "left", "age_s"),
    [(0, 0, 0.0), (50, 7, 0.02), (1000, 99, 0.02), (50, 50, SOON_S), (50, 50, 1.0)],
    ids=["nobody", "few", "a small part", "late", "much later"],
)
def test_nobody_is_young_while_few_leave_soon(came: int, left: int, age_s: float) -> None:
    assert seen(came, left, age_s).young_s(100.0) == 0.0


def test_many_that_leave_soon_say_until_when_one_is_young() -> None:
    impatience = seen(100, 20, 0.02)
    impatience.left(0.03, 100.1)
    assert impatience.young_s(100.2) == pytest.approx(1.2 * 0.03)


@pytest.mark.parametrize(("came", "left"), [(70, 8), (100, 10)], ids=["of many", "a part"])
def test_the_fewest_that_count(came: int, left: int) -> None:
    assert seen(came, left, 0.02).young_s(100.0) > 0
    assert seen(came, left - 1, 0.02).young_s(100.0) == 0.0


def test_it_is_remembered_for_half_a_second_more() -> None:
    impatience = seen(100, 50, 0.02)
    impatience.came(100.6)
    assert impatience.young_s(100.6) > 0


def test_who_leaves_after_a_pause_is_none_of_before_it() -> None:
    impatience = seen(1, 0, 0.0)
    for _ in range(20):
        impatience.left(0.03, 102.0)
    assert impatience.young_s(102.0) == pytest.approx(1.2 * 0.03)


def test_it_is_forgotten_after_a_second() -> None:
    impatience = seen(100, 50, 0.02)
    assert impatience.young_s(100.4) > 0
    for moment in (100.6, 101.2):
        impatience.came(moment)
    assert impatience.young_s(101.3) == 0.0
    assert seen(100, 50, 0.02).young_s(200.0) == 0.0
