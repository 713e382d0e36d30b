"""The rollouts of a serving service as they stand in ClearML: plans, states, and writing a plan.

Tested by tests/deploy/test_rollout.py and tests/stack/test_rollout.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformer_serving.contract.rollout import (
    EDITABLE,
    HOLDING,
    OVER,
    PLANS,
    STATES,
    Plan,
    State,
    plans_text,
    read_plans,
    read_states,
)
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.deploy.target import DeployTarget, one_at_a_time
from transformer_serving.desk.failure import Failure


@dataclass(frozen=True)
class Rollout:
    """A plan and how far it is; `state` is None until a controller has taken it up."""

    plan: Plan
    state: State | None

    @property
    def is_over(self) -> bool:
        return self.state is not None and self.state.is_over

    @property
    def line(self) -> str:
        """Where it is, and where it does not hold a step, why."""
        plan, state = self.plan, self.state
        head = f"{plan.endpoint}, bundle {plan.bundle_version}: "
        if state is None:
            return f"{head}waits for the controller"
        if state.phase == HOLDING and plan.shadow:
            return f"{head}in the shadow; the old bundle answers everything"
        if state.phase == HOLDING:
            share = f"{plan.steps[state.step]:g} % of the requests"
            return f"{head}step {state.step + 1} of {len(plan.steps)}, {share}"
        why = f": {state.reason}" if state.reason else ""
        return f"{head}{state.outcome if state.phase == OVER else state.phase}{why}"


def read_all(cli: ClearmlCli) -> dict[str, Rollout]:
    """The last rollout of each endpoint that had one. Raises Failure for items that are none."""
    return rollouts_of(configuration(cli))


def rollouts_of(items: Mapping[str, str]) -> dict[str, Rollout]:
    """The same of a configuration that has been read."""
    try:
        plans, states = read_plans(items.get(PLANS)), read_states(items.get(STATES))
    except ValueError:
        raise Failure(
            f"'{PLANS}' or '{STATES}' of the serving task's configuration is no JSON object; "
            "correct it in ClearML, or empty it: no rollout is then known any more"
        ) from None
    found = {}
    for endpoint, plan in plans.items():
        state = states.get(endpoint)
        found[endpoint] = Rollout(plan, state if state and state.id == plan.id else None)
    return found


def configuration(cli: ClearmlCli) -> dict[str, str]:
    """The serving task's configuration as text, by the names of its sections: what asks for a
    section's name alone needs no command, which takes a second or two."""
    return _texts(_task(cli))


def refuse_in_rollout(target: DeployTarget, endpoint: str) -> None:
    """Raises Failure (exit code 2) while the endpoint is in a rollout."""
    running = read_all(target.cli).get(endpoint)
    if running is not None and not running.is_over:
        raise Failure(
            f"'{endpoint}' is in a rollout of bundle {running.plan.bundle_version}; end it first: "
            f"{target.command(f'rollout abort {endpoint}')}, or promote",
            exit_code=2,
        )


def write(cli: ClearmlCli, plan: Plan) -> None:
    """Put the plan in the place of the endpoint's earlier one, and look whether it stays there.

    Of those of one machine one at a time: `plans_lock`.
    """
    task = _task(cli)
    _put(cli, task, {**read_plans(_texts(task).get(PLANS)), plan.endpoint: plan})
    if read_plans(configuration(cli).get(PLANS)).get(plan.endpoint) != plan:
        raise Failure(
            "somebody else's change of the serving service undid this one; try again, and let "
            "only one 'clearml-serving' write at a time"
        )


def drop_over(target: DeployTarget, endpoint: str, patience_s: float) -> None:
    """Take out the plan of an endpoint that went: its last rollout would be told of for ever. One
    that has begun meanwhile stays.

    Raises Failure where another command of this machine writes plans for longer than `patience_s`.
    """
    cli = target.cli
    with one_at_a_time(target.plans_lock, patience_s):
        task = _task(cli)
        rollouts = rollouts_of(_texts(task))
        if endpoint in rollouts and rollouts[endpoint].is_over:
            _put(cli, task, {name: one.plan for name, one in rollouts.items() if name != endpoint})


def _put(cli: ClearmlCli, task: Mapping[str, Any], plans: Mapping[str, Plan]) -> None:
    api = ClearmlApi(cli.environment)
    if task.get("status") not in EDITABLE:
        api.call("tasks.started", task=cli.serving_id, force=True)
    api.call(
        "tasks.edit_configuration", task=cli.serving_id, force=True,
        configuration=[{"name": PLANS, "value": plans_text(plans.values())}],
    )  # fmt: skip


def _task(cli: ClearmlCli) -> dict[str, Any]:
    api = ClearmlApi(cli.environment)
    api.wait()
    task: dict[str, Any] = api.call("tasks.get_by_id", task=cli.serving_id)["task"]
    return task


def _texts(task: dict[str, Any]) -> dict[str, str]:
    """The serving task's configuration as text."""
    found = task.get("configuration") or {}
    return {name: str(item.get("value") or "") for name, item in found.items()}
