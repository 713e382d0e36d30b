"""Every phase leads where it must, and its routes never name an engine that is not there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as some

from transformer_serving.contract.rollout import (
    ABORT,
    DID_NOT_PASS,
    HOLDING,
    LEAVING,
    NEW,
    OLD,
    OVER,
    PASSED,
    PROMOTE,
    PROMOTED,
    PROMOTING,
    RETURNING,
    WENT_BACK,
    Arm,
    Plan,
    State,
)
from transformer_serving.engine.controller.rollouts.course import (
    Known,
    begun,
    next_state,
)
from transformer_serving.engine.controller.rollouts.routes import routes, share_of

PLAN = Plan("a1", "texts", 77, "new", "old", (10.0, 50.0, 100.0), 60.0)
OWN = {"serving_url": "texts", "model_id": "old", "preprocess_artifact": "py_code_texts"}
CANDIDATE = {
    "serving_url": "texts", "version": "77", "model_id": "new",
    "preprocess_artifact": "py_code_texts_77",
}  # fmt: skip
THERE: dict[str, Any] = {"texts": OWN, "texts/77": CANDIDATE, "other": {"model_id": "else"}}
NAMED = {**THERE, "texts": {**OWN, "model_id": "new"}}
BEGUN = begun(PLAN, THERE, 100.0)
PHASES = (HOLDING, PROMOTING, LEAVING, RETURNING)


def arm(requests: int, errors: int = 0) -> Arm:
    found = Arm()
    for number in range(requests):
        found.count(502 if number < errors else 200, 9, 0.01 + number % 7 / 1_000)
    return found


def known(**more: Any) -> Known:
    return Known(**{"acked": True, "endpoints": THERE, "now": 200.0, **more})


def served(new: Arm, old: Arm | None = None, step: int = 0) -> dict[int, dict[str, Arm]]:
    return {step: {NEW: new, OLD: old or arm(9_000)}}


def test_a_step_begins_when_every_worker_has_its_routes() -> None:
    assert next_state(PLAN, BEGUN, known(acked=False, now=150.0)).since == 150.0
    assert next_state(PLAN, BEGUN, known(now=150.0)).since == 100.0


def test_a_good_step_goes_on_when_its_time_is_over_and_not_before() -> None:
    steps = served(arm(3_000))
    looked = next_state(PLAN, BEGUN, known(steps=steps, now=110.0))
    assert (looked.phase, looked.step, looked.looks, looked.well) == (HOLDING, 0, 1, True)
    on = next_state(PLAN, looked, known(steps=steps, now=170.0))
    assert (on.phase, on.step, on.looks, on.since) == (HOLDING, 1, 0, 170.0)


def test_too_few_requests_are_waited_for() -> None:
    state = next_state(PLAN, BEGUN, known(steps=served(arm(40)), now=900.0))
    assert (state.step, state.well, state.looks) == (0, False, 1)
    assert any("unsure" in line for line in state.says)


def test_without_an_answer_it_says_that_answers_are_waited_for() -> None:
    """The workers have told by now."""
    state = next_state(PLAN, BEGUN, known(acked=False, workers=1))
    for requests in (0, 9):
        state = next_state(PLAN, state, known(steps=served(arm(requests))))
        said = f"answers of the candidate so far, mirrored ones included: {requests}; the first"
        assert state.says[0].startswith(said)
        assert len(state.says) == 1
    assert "errors" in next_state(PLAN, state, known(steps=served(arm(10)))).says[0]


def test_a_look_is_not_taken_twice_at_the_same_requests() -> None:
    steps = served(arm(1_000))
    once = next_state(PLAN, BEGUN, known(steps=steps, now=110.0))
    again = next_state(PLAN, once, known(steps=steps, now=111.0))
    # What was judged last stays to be read.
    assert (again.looks, again.says) == (1, once.says)
    assert "errors" in once.says[0]
    more = served(arm(1_201))
    assert next_state(PLAN, once, known(steps=more, now=112.0)).looks == 2


def test_a_bad_one_goes_back_at_once_and_says_which_figure() -> None:
    state = next_state(PLAN, BEGUN, known(steps=served(arm(400, errors=100)), now=101.0))
    assert state.phase == RETURNING
    assert state.reason.startswith("errors: worse; 100 of 400")


def test_the_last_step_is_judged_by_errors_beside_those_of_all_steps() -> None:
    last = replace(BEGUN, step=2)
    steps = {0: {OLD: arm(9_000)}, 2: {NEW: arm(5_000)}}
    looked = next_state(PLAN, last, known(steps=steps))
    assert looked.phase == PROMOTING
    assert len(looked.says) == 1


def test_of_every_step_that_is_over_the_old_bundles_answers_are_kept() -> None:
    """Whoever counted them may leave while nobody listens."""
    steps = {**served(arm(3_000), arm(9_000, errors=9)), 1: {NEW: arm(4_000), OLD: arm(5_000, 4)}}
    state = replace(BEGUN, well=True)
    state = next_state(PLAN, state, known(steps={0: steps[0]}))
    assert (state.old_requests, state.old_errors) == (9_000, 9)
    left = next_state(PLAN, replace(state, well=True, since=100.0), known(steps={1: steps[1]}))
    assert (left.step, left.old_requests, left.old_errors) == (2, 14_000, 13)
    told = next_state(PLAN, replace(state, well=True, since=100.0), known(steps=steps))
    assert (told.old_requests, told.old_errors) == (14_000, 13)


def test_answers_of_a_later_step_are_not_kept_before_it_is_over() -> None:
    """An older row was put back, and another controller takes that step anew."""
    steps = {**served(arm(3_000)), 1: {NEW: arm(4_000), OLD: arm(5_000)}}
    state = next_state(PLAN, replace(BEGUN, well=True), known(steps=steps))
    assert (state.step, state.old_requests) == (1, 9_000)


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"lost_s": 60.0}, "engine has not been ready for 60 s"),
        ({"endpoints": {**THERE, "texts": {**OWN, "model_id": "x"}}}, "changed texts meanwhile"),
        ({"endpoints": {"texts/77": CANDIDATE}}, "changed texts meanwhile"),
        ({"endpoints": {"texts": OWN}}, "removed the candidate"),
    ],
)
def test_what_goes_wrong_beside_the_figures_goes_back(more: dict[str, Any], part: str) -> None:
    state = next_state(PLAN, BEGUN, known(**more))
    assert state.phase == RETURNING
    assert part in state.reason


def test_wishes() -> None:
    assert next_state(PLAN.wishing(ABORT), BEGUN, known()).phase == RETURNING
    promoting = next_state(PLAN.wishing(PROMOTE), BEGUN, known())
    assert promoting.phase == PROMOTING
    assert next_state(PLAN.wishing(ABORT), promoting, known()).phase == RETURNING


def test_promoting_waits_for_the_endpoints_own_engine_and_every_worker() -> None:
    state = replace(BEGUN, phase=PROMOTING, since=190.0)
    assert next_state(PLAN, state, known(serves=False)).phase == PROMOTING
    assert next_state(PLAN, state, known(serves=True, acked=False)).phase == PROMOTING
    leaving = next_state(PLAN, state, known(serves=True, endpoints=NAMED))
    assert leaving.phase == LEAVING
    over = next_state(PLAN, leaving, known(endpoints=NAMED))
    assert (over.phase, over.outcome) == (OVER, PROMOTED)
    assert next_state(PLAN, state, known(now=9_000.0)).phase == RETURNING


@pytest.mark.parametrize(
    ("serves", "part"), [(False, "it did not serve it"), (True, "not every worker took its routes")]
)
def test_a_promotion_that_takes_too_long_says_what_is_missing(serves: bool, part: str) -> None:
    state = replace(BEGUN, phase=PROMOTING, since=190.0)
    state = next_state(PLAN, state, known(now=200.0, serves=serves, acked=False))
    back = next_state(PLAN, state, known(now=9_000.0, serves=serves, acked=False))
    assert back.phase == RETURNING
    assert f"and {part} within 300 s" in back.reason


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ({"lost_s": 16.0}, "engine has not been ready for 16 s"),
        ({"endpoints": {"texts": {**OWN, "model_id": "new"}}}, "removed the candidate"),
        ({"endpoints": {**THERE, "texts": {"model_id": "x"}}, "serves": True}, "changed texts"),
        ({"endpoints": {"texts/77": CANDIDATE}}, "changed texts"),
        (
            {"endpoints": {**THERE, "texts/77": {**CANDIDATE, "model_id": "x"}}},
            "changed the candidate texts/77",
        ),
    ],
)
def test_what_goes_wrong_while_it_is_promoted_goes_back(more: dict[str, Any], part: str) -> None:
    state = replace(BEGUN, phase=PROMOTING, since=190.0)
    back = next_state(PLAN, state, known(**more))
    assert back.phase == RETURNING
    assert part in back.reason
    # What somebody else put there stays.
    endpoints, _ = routes(PLAN, back, known(**more).endpoints, {})
    assert endpoints.get("texts", {}).get("model_id") in {"old", "x", None}


def test_a_candidate_that_is_lost_is_no_harm_once_the_endpoint_serves() -> None:
    state = replace(BEGUN, phase=PROMOTING, since=190.0)
    lost = {"lost_s": 16.0, "serves": True, "endpoints": NAMED}
    assert next_state(PLAN, state, known(**lost)).phase == LEAVING
    assert next_state(PLAN, state, known(**lost, acked=False)).phase == PROMOTING


def test_a_promotion_that_another_writer_undid_is_written_again_before_it_leaves() -> None:
    """clearml-serving's `model add` puts the whole map back that it read at its start."""
    promoting = replace(BEGUN, phase=PROMOTING, since=190.0)
    assert next_state(PLAN, promoting, known(serves=True)).phase == PROMOTING
    for phase in (PROMOTING, LEAVING):
        state = replace(BEGUN, phase=phase, since=190.0)
        kept = next_state(PLAN, state, known(serves=True))
        assert kept.phase == phase
        endpoints, _ = routes(PLAN, kept, THERE, {})
        assert endpoints["texts"]["model_id"] == "new"
        assert endpoints["texts/77"] == CANDIDATE
    leaving = replace(BEGUN, phase=LEAVING)
    gone = next_state(PLAN, leaving, known(endpoints={"texts": OWN}))
    assert gone.phase == RETURNING
    assert "somebody else undid the promotion" in gone.reason
    # A third bundle came after the promotion.
    after = {**THERE, "texts": {**OWN, "model_id": "third"}}
    assert next_state(PLAN, leaving, known(endpoints=after)).outcome == PROMOTED
    assert routes(PLAN, leaving, after, {})[0] == after


def test_a_promotion_that_was_undone_beside_another_candidate_does_not_wait_for_it() -> None:
    """Nothing writes the promotion again from an entry that names another bundle."""
    changed = {**THERE, "texts/77": {**CANDIDATE, "model_id": "third"}}
    back = next_state(PLAN, replace(BEGUN, phase=LEAVING), known(endpoints=changed))
    assert back.phase == RETURNING
    assert "removed or changed texts/77" in back.reason
    assert routes(PLAN, back, changed, {})[0] == changed
    assert next_state(PLAN, back, known(endpoints=changed)).outcome == WENT_BACK


def test_after_its_end_a_promotion_is_told_from_a_rollback() -> None:
    over = replace(BEGUN, phase=OVER, outcome=PROMOTED)
    endpoints, _ = routes(PLAN, over, THERE, {})
    assert endpoints["texts"]["model_id"] == "new"
    assert "texts/77" not in endpoints
    assert routes(PLAN, over, {"texts": OWN}, {})[0] == {"texts": OWN}


def test_whoever_has_not_told_yet_holds_up_the_next_step_and_no_verdict() -> None:
    good = served(arm(3_000))
    looked = next_state(PLAN, BEGUN, known(steps=good, now=110.0))
    assert looked.well
    unheard = next_state(PLAN, looked, known(steps=good, acked=False, now=170.0))
    assert (unheard.step, unheard.well) == (0, False)
    # What is known of by then was judged before.
    heard = next_state(PLAN, unheard, known(steps=good, now=180.0))
    assert (heard.step, heard.looks) == (0, 1)
    more = served(arm(4_000))
    assert next_state(PLAN, heard, known(steps=more, now=190.0)).step == 1
    bad = served(arm(4_000, errors=1_000))
    assert next_state(PLAN, looked, known(steps=bad, acked=False, now=170.0)).phase == RETURNING


def test_where_nobody_tells_anything_it_says_so() -> None:
    nobody = next_state(PLAN, BEGUN, known(acked=False, workers=0))
    assert "no worker has told anything" in nobody.says[0]
    one = next_state(PLAN, BEGUN, known(acked=False, workers=1))
    assert "not every worker has told" in one.says[0]


def test_returning_waits_for_every_worker() -> None:
    state = replace(BEGUN, phase=RETURNING, reason="why")
    assert next_state(PLAN, state, known(acked=False)) == state
    over = next_state(PLAN, state, known())
    assert (over.phase, over.outcome, over.reason) == (OVER, WENT_BACK, "why")
    assert next_state(PLAN, over, known()) == over


def test_a_promoted_engine_that_took_long_leaves_workers_their_time() -> None:
    """That of a worker which must tell anew begins when the engine serves, not with the load."""
    state = replace(BEGUN, phase=PROMOTING, since=5.0)
    state = next_state(PLAN, state, known(now=1005.0, coming=True, endpoints=NAMED))
    late = known(now=1015.0, coming=True, serves=True, acked=False, endpoints=NAMED)
    state = next_state(PLAN, state, late)
    assert (state.phase, state.served_after_s) == (PROMOTING, 1010.0)
    state = next_state(PLAN, state, replace(late, now=1305.0))
    assert (state.phase, state.served_after_s) == (PROMOTING, 1010.0)
    assert next_state(PLAN, state, replace(late, now=1305.0, acked=True)).phase == LEAVING
    back = next_state(PLAN, state, replace(late, now=1316.0))
    assert back.phase == RETURNING
    assert "not every worker took its routes within 300 s" in back.reason


def test_a_promotion_that_goes_back_is_over_when_the_old_bundle_answers() -> None:
    """Until it is loaded again the new one does, and who asked for an abort is told only then."""
    state = replace(BEGUN, phase=RETURNING, reason="why", since=190.0)
    assert next_state(PLAN, state, known(serves=True, coming=True)) == state
    assert next_state(PLAN, state, known(serves=False, coming=True)).phase == OVER
    # Somebody else may have put a third one there.
    other = {**THERE, "texts": {**OWN, "model_id": "x"}}
    assert next_state(PLAN, state, known(serves=True, coming=True, endpoints=other)).phase == OVER
    # Its memory may be what the candidate has, which goes with the end.
    for more in ({"coming": False}, {"coming": True, "now": 9_000.0}):
        over = next_state(PLAN, state, known(serves=True, **more))
        assert (over.phase, over.outcome) == (OVER, WENT_BACK)
        assert over.reason == (
            "why; texts asks for its old bundle, and the new one answers until that is loaded"
        )


def test_a_candidate_of_another_model_is_not_promoted() -> None:
    theirs = {**THERE, "texts/77": {**CANDIDATE, "model_id": "x"}}
    assert next_state(PLAN, BEGUN, known(endpoints=theirs)).phase == RETURNING
    endpoints, _ = routes(PLAN, replace(BEGUN, phase=PROMOTING), theirs, {})
    assert endpoints["texts"] == OWN


def test_the_routes_of_a_rollout_that_is_promoted() -> None:
    endpoints, canaries = routes(PLAN, BEGUN, THERE, {"more": {}})
    assert endpoints == THERE
    assert canaries == {
        "more": {},
        "texts": {
            "endpoint": "texts", "weights": [0.9, 0.1], "load_endpoints": ["texts", "texts/77"]
        },
    }  # fmt: skip
    endpoints, canaries = routes(PLAN, replace(BEGUN, phase=PROMOTING), endpoints, canaries)
    assert endpoints["texts"] == {
        "serving_url": "texts", "model_id": "new", "preprocess_artifact": "py_code_texts_77"
    }  # fmt: skip
    assert canaries["texts"]["weights"] == [0.0001, 0.9999]
    endpoints, canaries = routes(PLAN, replace(BEGUN, phase=LEAVING), endpoints, canaries)
    assert (canaries, "texts/77" in endpoints) == ({"more": {}}, True)
    over = replace(BEGUN, phase=OVER, outcome=PROMOTED)
    endpoints, _ = routes(PLAN, over, endpoints, canaries)
    assert endpoints["texts"]["model_id"] == "new"
    assert set(endpoints) == {"texts", "other"}


def test_a_promotion_that_goes_back_gives_the_endpoint_its_own_again() -> None:
    endpoints, canaries = routes(PLAN, replace(BEGUN, phase=PROMOTING), THERE, {})
    endpoints, canaries = routes(PLAN, replace(BEGUN, phase=RETURNING), endpoints, canaries)
    assert (endpoints, canaries) == (THERE, {})


def test_an_endpoint_that_somebody_else_changed_is_left_as_it_is() -> None:
    theirs = {**THERE, "texts": {"model_id": "theirs"}}
    over = replace(BEGUN, phase=OVER, outcome=WENT_BACK)
    assert routes(PLAN, over, theirs, {})[0]["texts"] == {"model_id": "theirs"}


def test_a_route_of_somebody_else_is_left_as_it_is() -> None:
    theirs = {"texts": {"load_endpoints": ["texts", "other"]}}
    assert routes(PLAN, replace(BEGUN, phase=RETURNING), THERE, theirs)[1] == theirs


@given(some.sampled_from(PHASES), some.integers(0, 2), some.booleans())
def test_a_route_goes_before_what_it_names(phase: str, step: int, promoted: bool) -> None:
    state = replace(BEGUN, phase=phase, step=step)
    endpoints, canaries = routes(PLAN, state, THERE, {})
    named = {name for route in canaries.values() for name in route["load_endpoints"]}
    assert named <= set(endpoints)
    assert all(weight > 0 for route in canaries.values() for weight in route["weights"])
    over = replace(state, phase=OVER, outcome=PROMOTED if promoted else WENT_BACK)
    ended, left = routes(PLAN, over, endpoints, canaries)
    assert "texts/77" not in ended
    assert left == {}
    assert routes(PLAN, over, ended, left) == (ended, left)


COUNTS = some.tuples(some.integers(0, 800), some.integers(0, 40), some.booleans())


@given(some.lists(COUNTS, max_size=8))
def test_whatever_comes_it_is_always_somewhere(looks: list[tuple[int, int, bool]]) -> None:
    state: State = BEGUN
    total, wrong, now = 0, 0, 100.0
    for requests, errors, acked in looks:
        total, wrong, now = total + requests, wrong + min(errors, requests), now + 30
        steps = served(arm(total, wrong), step=state.step)
        state = next_state(PLAN, state, known(steps=steps, acked=acked, now=now, serves=acked))
        assert 0 <= share_of(PLAN, state) <= 1
        assert (state.phase == OVER) == bool(state.outcome)
        assert state.phase in (HOLDING, PROMOTING, LEAVING, RETURNING, OVER)


SHADOW = replace(PLAN, steps=(100.0,), shadow=True, mirror=0.25)


def shadowed(differ: int) -> dict[int, dict[str, Arm]]:
    new = arm(3_000)
    new.compared, new.differ = 3_000, differ
    return {0: {NEW: new, OLD: arm(3_000)}}


@pytest.mark.parametrize(
    ("differ", "outcome", "reason"),
    [(10, PASSED, "every figure was well"), (900, DID_NOT_PASS, "differing answers: worse")],
)
def test_a_shadow_has_no_route_and_ends_with_a_verdict(
    differ: int, outcome: str, reason: str
) -> None:
    assert share_of(SHADOW, BEGUN) == 0
    assert routes(SHADOW, BEGUN, THERE, {}) == (THERE, {})
    ended = next_state(SHADOW, BEGUN, known(steps=shadowed(differ)))
    assert ended.phase == RETURNING
    over = next_state(SHADOW, ended, known())
    assert (over.outcome, over.reason[: len(reason)]) == (outcome, reason)
    endpoints, canaries = routes(SHADOW, over, THERE, {})
    assert (endpoints, canaries) == ({"texts": OWN, "other": THERE["other"]}, {})


def test_a_shadow_that_is_aborted_did_not_pass_and_none_is_promoted() -> None:
    aborted = next_state(SHADOW.wishing(ABORT), BEGUN, known())
    assert next_state(SHADOW, aborted, known()).outcome == DID_NOT_PASS
    assert next_state(SHADOW.wishing(PROMOTE), BEGUN, known()).phase == HOLDING


def test_mirrored_requests_alone_are_reason_for_another_look() -> None:
    plan = replace(PLAN, mirror=0.25)
    steps = served(arm(2_000))
    once = next_state(plan, BEGUN, known(steps=steps, now=110.0))
    assert (once.looks, once.well) == (1, False)
    steps[0][NEW].compared = 2_000
    again = next_state(plan, once, known(steps=steps, now=112.0))
    assert (again.looks, again.well) == (2, True)
