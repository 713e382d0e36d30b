"""What the desk says of a rollout; the whole way is in tests/stack/test_rollout.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from transformer_serving.contract.rollout import HOLDING, OVER, RETURNING, Plan, State
from transformer_serving.desk.deploy.rollout import Cost, check_steps, mirrored_share
from transformer_serving.desk.deploy.rollout_plans import Rollout
from transformer_serving.desk.failure import Failure

PLAN = Plan("a1", "texts", 77, "new", "old", (1.0, 100.0), 60.0)
HELD = State("a1", HOLDING, 0)


@pytest.mark.parametrize(
    ("state", "line"),
    [
        (None, "waits for the controller"),
        (State("a1", HOLDING, 0), "step 1 of 2, 1 % of the requests"),
        (State("a1", RETURNING, reason="errors: worse"), "returning: errors: worse"),
        (State("a1", OVER, outcome="went back", reason="why"), "went back: why"),
        (State("a1", OVER, outcome="promoted"), "promoted"),
    ],
)
def test_its_line_says_where_it_is(state: State | None, line: str) -> None:
    assert Rollout(PLAN, state).line == f"texts, bundle 77: {line}"


def test_it_is_over_where_the_controller_says_so() -> None:
    assert not Rollout(PLAN, None).is_over
    assert Rollout(PLAN, replace(State("a1"), phase=OVER)).is_over


def test_steps() -> None:
    assert check_steps((1, 10, 100)) == (1, 10, 100)
    with pytest.raises(Failure, match="rise and end with 100"):
        check_steps((100,))


def test_the_cost_counts_the_endpoint_and_its_memory() -> None:
    says = Cost("texts/77", 2, 90_000_000, 8_000_000_000).says
    assert "texts/77, number 3 of the service, with 90 MB or more" in says
    assert "8,000 MB are free here" in says
    assert "free" not in Cost("texts/77", 2, 90_000_000, None).says


def test_the_cost_says_what_mirroring_takes() -> None:
    assert "no requests are mirrored" in Cost("texts/77", 2, 90, None).says
    stepped = Cost("texts/77", 2, 90, None, 0.25)
    assert "twice that while" in stepped.says
    assert "mirrored requests take 25 % of each worker's time at most" in stepped.says
    shadow = Cost("texts/77", 2, 90, None, 0.25, shadow=True)
    assert "twice" not in shadow.says
    assert "mirrored requests of both bundles take 25 %" in shadow.says
    assert (stepped.needed, shadow.needed) == (180, 90)


def test_a_shadow_says_so() -> None:
    shadow = replace(PLAN, steps=(100.0,), shadow=True)
    assert "in the shadow; the old bundle answers everything" in Rollout(shadow, HELD).line


def test_texts_are_not_mirrored() -> None:
    texts: Any = SimpleNamespace(endpoint=SimpleNamespace(task="text-generation"))
    labels: Any = SimpleNamespace(endpoint=SimpleNamespace(task="text-classification"))
    assert mirrored_share(labels, 25, shadow=True) == 25
    assert mirrored_share(texts, 25, shadow=False) == 0
    with pytest.raises(Failure, match="no --shadow of text-generation"):
        mirrored_share(texts, 25, shadow=True)
    with pytest.raises(Failure, match="more than 0"):
        mirrored_share(labels, 0, shadow=True)
