"""Good and bad candidates of a known kind are told from each other, and seldom wrongly."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, strategies as some

from transformer_serving.contract.rollout import Allowed, Arm
from transformer_serving.engine.controller.rollouts.judgement import (
    UNSURE,
    WELL,
    WORSE,
    _differing,
    judge,
    of_all,
)

ALLOWED = Allowed()
LENGTHS = (6, 30, 200)


def arm(
    requests: int, *, errors: float = 0.0, times: float = 1.0, tail: float = 0.0,
    slow_at: int | None = None,
) -> Arm:  # fmt: skip
    """Answers around 10 ms, `times` as slow; `tail` of them ten times that."""
    found = Arm()
    for _ in range(requests):
        tokens = random.choice(LENGTHS)
        seconds = 0.01 * random.lognormvariate(0, 0.3) * (10 if random.random() < tail else 1)
        seconds *= times if slow_at in (None, tokens) else 1.0
        found.count(502 if random.random() < errors else 200, tokens, seconds)
    return found


def said(new: Arm, old: Arm, *, next_share: float = 1.0, look: int = 1) -> tuple[str, str]:
    verdict, decisive = of_all(judge(new, old, ALLOWED, next_share=next_share, steps=4, look=look))
    return verdict, decisive.figure


@pytest.fixture(autouse=True)
def seeded() -> None:
    random.seed(11)


def test_an_equal_one_is_well_once_it_was_asked_enough() -> None:
    assert said(arm(50), arm(5_000), next_share=0.1)[0] == UNSURE
    assert said(arm(5_000), arm(5_000))[0] == WELL


def test_early_steps_need_fewer_requests_than_the_last() -> None:
    """What the next step may cost counts, and that is a small part of all requests."""
    few = arm(400)
    assert said(few, arm(5_000), next_share=0.1)[0] == WELL
    assert said(few, arm(5_000), next_share=1.0)[0] == UNSURE


@pytest.mark.parametrize(
    ("new", "figure"),
    [
        ({"errors": 0.05}, "errors"),
        ({"times": 2.0}, "median, all lengths"),
        ({"tail": 0.05}, "p99, all lengths"),
        ({"times": 3.0, "slow_at": 200}, "median, up to 256 tokens"),
    ],
)
def test_a_worse_one_is_told_by_its_figure(new: dict[str, float], figure: str) -> None:
    verdict, decisive = said(arm(2_000, **new), arm(2_000))  # type: ignore[arg-type]
    assert verdict == WORSE
    # A length that is slow makes the whole slow, too: whichever is sure first.
    assert decisive == figure or ("slow_at" in new and decisive.startswith(("p99", "median")))


@pytest.mark.parametrize(
    ("new", "figure", "by_default", "allowed"),
    [
        ({"errors": 0.05}, "errors", WORSE, Allowed(harm=0.2)),
        ({"tail": 0.05}, "p99, all lengths", WORSE, Allowed(harm=0.2)),
        ({"tail": 0.05}, "p99, all lengths", WORSE, Allowed(p99=20.0)),
        ({"times": 2.0}, "median, all lengths", WORSE, Allowed(p50=3.0)),
        ({"differ": 400}, "differing answers", WORSE, Allowed(differ=0.5)),
        ({"requests": 800}, "errors", UNSURE, Allowed(confidence=0.5)),
    ],
    ids=["harm in errors", "harm in slow answers", "p99", "p50", "differ", "confidence"],
)
def test_what_is_allowed_is_what_turns_the_verdict(
    new: dict[str, Any], figure: str, by_default: str, allowed: Allowed
) -> None:
    made = arm(**{"requests": 2_000, **{name: new[name] for name in new if name != "differ"}})
    made.compared, made.differ = made.requests, new.get("differ", 0)
    old = arm(5_000)
    for limits, verdict in ((ALLOWED, by_default), (allowed, WELL)):
        found = judge(made, old, limits, next_share=1.0, steps=4, look=1, mirrored=True)
        assert {one.figure: one.verdict for one in found}[figure] == verdict


@pytest.mark.parametrize(("times", "verdict"), [(1.0, WELL), (1.35, UNSURE), (2.0, WORSE)])
def test_a_median_near_what_is_allowed_is_neither_well_nor_worse(
    times: float, verdict: str
) -> None:
    new, old = arm(300, times=times), arm(300)
    found = {
        one.figure: one.verdict for one in judge(new, old, ALLOWED, next_share=1.0, steps=4, look=1)
    }
    assert found["median, all lengths"] == verdict


def test_a_length_that_is_slower_is_told_where_the_whole_is_well() -> None:
    """As long texts of which there are few are lost among all."""
    new, old = arm(4_000), arm(4_000)
    for one, times in ((new, 2.0), (old, 1.0)):
        for _ in range(250):
            one.count(200, 1_000, 0.01 * times * random.lognormvariate(0, 0.3))
    found = judge(new, old, ALLOWED, next_share=1.0, steps=4, look=1)
    assert [one.figure for one in found if one.verdict == WORSE] == ["median, up to 1024 tokens"]
    assert of_all(found)[0] == WORSE


def test_one_that_fails_every_request_is_seen_at_once() -> None:
    assert said(arm(20, errors=1.0), arm(500), next_share=0.1) == (WORSE, "errors")


def test_a_faster_one_that_fails_less_is_well() -> None:
    assert said(arm(4_000, times=0.5), arm(4_000, errors=0.02))[0] == WELL


def test_nobody_asked_is_unsure() -> None:
    assert said(Arm(), arm(100))[0] == UNSURE
    assert said(arm(100), Arm())[0] == UNSURE


def test_untimed_only_errors_count() -> None:
    verdicts = judge(
        arm(3_000, times=5), arm(3_000), ALLOWED, next_share=1, steps=4, look=1, timed=False
    )
    assert [verdict.figure for verdict in verdicts] == ["errors"]
    assert of_all(verdicts)[0] == WELL


def test_a_rare_length_is_not_waited_for() -> None:
    new, old = arm(4_000), arm(4_000)
    new.count(200, 5_000, 0.5)
    old.count(200, 5_000, 0.5)
    assert said(new, old)[0] == WELL


def test_later_looks_ask_more() -> None:
    new, old = arm(300), arm(5_000)
    assert said(new, old, next_share=0.1)[0] == WELL
    assert said(new, old, next_share=0.1, look=2_000)[0] == UNSURE


def test_an_equal_one_hardly_ever_goes_back() -> None:
    """Rollouts of twelve looks each: at 95 % one in twenty of them may go back."""
    wrong = 0
    for _ in range(60):
        new, old = Arm(), Arm()
        for look in range(1, 13):
            new.add(arm(40, errors=0.02, tail=0.02))
            old.add(arm(40, errors=0.02, tail=0.02))
            if said(new, old, look=look)[0] == WORSE:
                wrong += 1
                break
    assert wrong <= 4


def test_the_line_has_the_numbers() -> None:
    verdicts = judge(arm(100, errors=1), arm(200), ALLOWED, next_share=0.5, steps=2, look=1)
    line = verdicts[0].line()
    assert line.startswith("errors: worse; 100 of 100 (100.0 %) beside 0 of 200 (0.0 %)")
    assert "at the next 50 %" in line


def mirrored(compared: int, differ: int, *, next_share: float = 1.0) -> str:
    new = arm(5_000)
    new.compared, new.differ, new.left_out = compared, differ, 7
    verdicts = judge(
        new, arm(5_000), ALLOWED, next_share=next_share, steps=1, look=1, mirrored=True
    )
    assert [verdict.figure for verdict in verdicts[:2]] == ["errors", "differing answers"]
    assert "; 7 not mirrored" in verdicts[1].says
    assert (verdicts[1].verdict != WELL) == (of_all(verdicts)[1].figure == "differing answers")
    return verdicts[1].verdict


def test_answers_that_differ_are_a_figure_like_the_others() -> None:
    assert mirrored(1_000, 10) == WELL
    assert mirrored(1_000, 200) == WORSE
    assert mirrored(40, 0) == UNSURE
    assert mirrored(40, 0, next_share=0.1) == WELL
    assert mirrored(0, 0) == UNSURE


@given(some.integers(0, 3_000), some.data())
def test_more_that_differ_are_never_better(compared: int, data: some.DataObject) -> None:
    few = data.draw(some.integers(0, compared))
    many = data.draw(some.integers(few, compared))
    rank = {WELL: 0, UNSURE: 1, WORSE: 2}
    found = [
        _differing(Arm(compared=compared, differ=differ), ALLOWED, 1.0, 2.5).verdict
        for differ in (few, many)
    ]
    assert rank[found[0]] <= rank[found[1]]


def test_where_every_answer_may_differ_none_is_waited_for() -> None:
    allowed = Allowed(differ=1.0)
    verdicts = judge(Arm(), Arm(), allowed, next_share=1, steps=1, look=1, mirrored=True)
    assert verdicts[1].verdict == WELL
