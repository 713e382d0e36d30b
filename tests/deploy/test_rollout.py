"""What the desk says of a rollout; the whole way is in tests/stack/test_rollout.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transformer_serving.contract.rollout import HOLDING, OVER, RETURNING, Plan, State
from transformer_serving.desk.deploy.rollout import Cost, check_steps
from transformer_serving.desk.deploy.rollout_plans import Rollout
from transformer_serving.desk.failure import Failure

PLAN = Plan("a1", "texts", 77, "new", "old", (1.0, 100.0), 60.0)


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
