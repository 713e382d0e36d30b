"""What a rollout writes into ClearML is read again as it was, and time bins hold their times."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as some

from transformer_serving.contract.rollout import (
    NEW,
    OLD,
    Arm,
    Plan,
    Seen,
    State,
    bin_of,
    bound_of,
    length_of,
    plans_text,
    read_plans,
    read_seen,
    read_states,
    seen_text,
    states_text,
)

PLAN = Plan("a1", "texts", 77, "new", "old", (1.0, 10.0, 100.0), 60.0)


def arm(*answers: tuple[int, int, float]) -> Arm:
    found = Arm()
    for answer in answers:
        found.count(*answer)
    return found


def test_everything_is_read_as_it_was_written() -> None:
    other = Plan("b2", "more", 78, "n", "o", (50.0, 100.0), 5.0, wish="abort")
    assert read_plans(plans_text([PLAN, other])) == {"texts": PLAN, "more": other}
    states = {"texts": State("a1", "holding", 2, says=("errors: well",), before={"model_id": "o"})}
    assert read_states(states_text(states)) == states
    steps = {"a1 0": {OLD: arm((200, 9, 0.01)), NEW: arm((502, 0, 0.1), (200, 300, 2.0))}}
    seen = Seen(3, {"texts": "a1 holding 0"}, steps)
    assert read_seen(seen_text(seen)) == seen


def test_an_item_that_is_not_there_is_no_rollout() -> None:
    assert read_plans(None) == {}
    assert read_states("") == {}
    assert read_seen(None) == Seen()


@pytest.mark.parametrize("text", ["[]", '{"steps": 1}', '{"steps": {"a1 0": {"old": {}}}}'])
def test_what_a_worker_tells_otherwise_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a rollout"):
        read_seen(text)


def test_the_candidate_is_a_version_of_the_endpoint() -> None:
    assert PLAN.candidate == "texts/77"


def test_an_error_has_no_time() -> None:
    found = arm((200, 5, 0.01), (503, 0, 9.0))
    assert (found.requests, found.errors, sum(found.times().values())) == (2, 1, 1)


def test_arms_are_added_up() -> None:
    found = arm((200, 5, 0.01), (502, 5, 0.01))
    found.add(arm((200, 5, 0.01), (200, 60, 0.5)))
    assert found == arm((200, 5, 0.01), (502, 5, 0.01), (200, 5, 0.01), (200, 60, 0.5))
    assert set(found.lengths) == {8, 64}


def test_an_answer_is_an_error_from_400_on() -> None:
    assert arm((400, 5, 0.01)).errors == 1


def test_mirrored_requests_are_added_up_and_judged_by() -> None:
    found = Arm(requests=1, compared=5, differ=2, left_out=3)
    found.add(Arm(requests=2, compared=7, differ=1, left_out=4))
    assert found == Arm(requests=3, compared=12, differ=3, left_out=7)
    assert found.evidence == 3 + 12


@given(some.floats(1e-4, 3600))
def test_a_bin_is_the_first_that_holds_its_time(seconds: float) -> None:
    at = bin_of(seconds)
    assert bound_of(at) >= seconds * (1 - 1e-9)
    assert at == 0 or bound_of(at - 1) <= seconds * (1 + 1e-9)


@given(some.integers(1, 1 << 20))
def test_a_length_is_the_next_power_of_two(tokens: int) -> None:
    assert length_of(tokens) // 2 < tokens <= length_of(tokens)
