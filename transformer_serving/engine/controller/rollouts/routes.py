"""The routes of each phase of a rollout, as clearml-serving has them: pure functions.

Tested by tests/engine/rollouts/test_course.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformer_serving.contract.rollout import (
    LEAST_SHARE,
    LEAVING,
    OVER,
    PROMOTED,
    PROMOTING,
    RETURNING,
    Plan,
    State,
)

Configuration = Mapping[str, Any]


def serving(plan: Plan, endpoints: Configuration) -> str | None:
    """The model that the endpoint's own entry names; None where it has none."""
    model_id: str | None = endpoints.get(plan.endpoint, {}).get("model_id")
    return model_id


def is_there(plan: Plan, endpoints: Configuration) -> bool:
    """Whether the candidate's entry is there, and still names the bundle of the plan."""
    return bool(endpoints.get(plan.candidate, {}).get("model_id") == plan.model_id)


def share_of(plan: Plan, state: State) -> float:
    """Of all requests, the candidate's."""
    match state.phase:
        case "holding" if not plan.shadow:
            return plan.steps[state.step] / 100
        case "promoting":
            return 1.0
    return 0.0


def routes(
    plan: Plan, state: State, endpoints: Configuration, canaries: Configuration
) -> tuple[dict[str, Any], dict[str, Any]]:
    """clearml-serving's endpoints and canaries as this phase wants them, those of others as is."""
    ours, splits = dict(endpoints), dict(canaries)
    if new_share := share_of(plan, state):
        # Both keep a trace of a share: clearml-serving divides by the sum of the weights of those
        # that are there, inside its update lock, and the other one may be removed by hand.
        new_share = min(max(new_share, LEAST_SHARE), 1 - LEAST_SHARE)
        splits[plan.endpoint] = {
            "endpoint": plan.endpoint,
            "weights": [round(1 - new_share, 6), round(new_share, 6)],
            "load_endpoints": [plan.endpoint, plan.candidate],
        }
    elif plan.candidate in splits.get(plan.endpoint, {}).get("load_endpoints", ()):
        del splits[plan.endpoint]
    own = serving(plan, ours)
    is_candidate = is_there(plan, ours)
    # The old bundle beside a candidate that was taken away is a map of before, written back by a
    # writer that had read it then; without the candidate somebody rolled back.
    is_undone = _is_promoted(state) and is_candidate and own == plan.old_model_id
    if is_undone or (state.phase == PROMOTING and is_candidate):
        ours[plan.endpoint] = _as_itself(plan, ours[plan.candidate])
    elif _goes_back(state) and state.before and own == plan.model_id:
        ours[plan.endpoint] = dict(state.before)
    if state.phase == OVER and is_candidate:
        del ours[plan.candidate]
    return ours, splits


def _is_promoted(state: State) -> bool:
    return state.phase == LEAVING or (state.phase == OVER and state.outcome == PROMOTED)


def _goes_back(state: State) -> bool:
    return state.phase == RETURNING or (state.phase == OVER and state.outcome != PROMOTED)


def _as_itself(plan: Plan, candidate: Configuration) -> dict[str, Any]:
    """The candidate's endpoint under the endpoint's own name, with the same code and model."""
    own = {name: value for name, value in candidate.items() if name != "version"}
    return {**own, "serving_url": plan.endpoint}
