"""A guarded rollout from the desk: the candidate beside the old bundle, and what becomes of it.

The steps are the controller's, by what stands in ClearML; what is here may end at any time.

Tested by tests/stack/test_rollout.py and tests/deploy/test_rollout.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from transformer_serving.contract.heads import GENERATION
from transformer_serving.contract.rollout import (
    ABORT,
    LEAST_SHARE,
    PROMOTE,
    Allowed,
    Plan,
    candidate_name,
)
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.cli import (
    listed_canaries,
    listed_endpoints,
    no_route,
)
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.deploy.candidate_cost import (
    Cost,
    afforded,
    engine_bytes,
    free_bytes,
)
from transformer_serving.desk.deploy.endpoint import add_and_look, check_name, check_triton
from transformer_serving.desk.deploy.golden import wait_for_golden
from transformer_serving.desk.deploy.present import note_served
from transformer_serving.desk.deploy.refusals import Refusals
from transformer_serving.desk.deploy.removal import forget_older
from transformer_serving.desk.deploy.rollout_plans import (
    Rollout,
    read_all,
    refuse_in_rollout,
    write,
)
from transformer_serving.desk.deploy.taking_out import taken_out_again
from transformer_serving.desk.deploy.target import DeployTarget, one_at_a_time
from transformer_serving.desk.deploy.time_limit import TimeLimit, within
from transformer_serving.desk.deploy.upload import upload
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import key_header
from transformer_serving.desk.step_report import StepReport

_LOOK_S = 1.0
# The least that compares anything: a step beside the old bundle, and the last.
_FEWEST_STEPS = 2
# Kept of the time limit, to take out again in it what does not answer; it may last longer.
_TAKING_OUT_S = 10.0
# For another deploy, where nothing is lost without the lock.
_PATIENCE_S = 30.0
# More than a Triton takes to come back with its models on most machines.
_SILENT_S = 600.0


def check_steps(steps: Sequence[float]) -> tuple[float, ...]:
    """Raises Failure (exit code 2) for steps that do not rise to 100, or that no route can have."""
    least = 100 * LEAST_SHARE
    rising = all(before < after for before, after in zip(steps, steps[1:], strict=False))
    if len(steps) < _FEWEST_STEPS or not rising or steps[0] <= 0 or steps[-1] != 100:
        raise Failure(
            "--steps are percents that rise and end with 100, two at least, such as 1,10,50,100; "
            f"for all at once there is '{command_line('deploy')}'",
            exit_code=2,
        )
    if steps[0] < least or steps[-2] > 100 - least:
        raise Failure(
            f"--steps before the last are from {least:g} to {100 - least:g}, as each bundle keeps "
            f"a ten-thousandth of the requests; got {','.join(map(str, steps))}",
            exit_code=2,
        )
    return tuple(steps)


def mirrored_share(bundle: Bundle, share: float, *, shadow: bool) -> float:
    """That of the bundle's task. Raises Failure (exit code 2) for a shadow without."""
    if shadow and bundle.endpoint.task == GENERATION:
        raise Failure(
            "there is no --shadow of text-generation: sampled texts differ from one request to the "
            "next, and a mirrored one would hold a place of the engine for seconds; a rollout "
            "with --steps compares errors and times",
            exit_code=2,
        )
    if shadow and not share:
        raise Failure(
            "--shadow has mirrored requests alone; give --mirror more than 0", exit_code=2
        )
    return 0.0 if bundle.endpoint.task == GENERATION else share


def start(
    target: DeployTarget,
    bundle: Bundle,
    endpoint: str,
    *,
    steps: Sequence[float],
    hold_s: float,
    allowed: Allowed,
    timeout_s: float,
    report: StepReport,
    tell: StepReport,
    mirror: float = 0.0,
    shadow: bool = False,
    spent_s: float = 0.0,
) -> Rollout:
    """Bring the candidate up beside the endpoint and write the plan; `tell` hears what it costs.

    `mirror` is the share of each worker's time for mirrored requests. In a `shadow` there are no
    others, and `steps` do not count.

    Raises Failure: a name, steps or an endpoint that this cannot be done with, or too little memory
    (exit code 2), or a candidate that did not come to answer within `timeout_s`, which is then
    taken out again.
    """
    check_name(endpoint)
    check_triton(target, bundle)
    mirror = mirrored_share(bundle, mirror, shadow=shadow)
    steps = (100.0,) if shadow else check_steps(steps)
    what = f"the candidate for {endpoint}"
    with within(timeout_s, what, report, look=target.look, spent=spent_s) as limit:
        with one_at_a_time(target.lock, report=limit.report):
            limit.report(f"asking whether {endpoint} is in a rollout")
            old_model_id, cost = _checked(target, bundle, endpoint)
            afforded(replace(cost, mirror=mirror, shadow=shadow), tell)
            limit.report(f"noting what {endpoint} serves until now")
            note_served(target, endpoint, target.ask(endpoint, bundle.manifest.golden.request))
            limit.report(f"uploading the candidate for {endpoint}")
            plan = Plan(
                uuid.uuid4().hex, endpoint, bundle.manifest.bundle_version,
                upload(target, bundle, endpoint, limit), old_model_id, tuple(steps), hold_s,
                allowed, mirror=mirror, shadow=shadow,
            )  # fmt: skip
            with taken_out_again(target, plan, locked=True):
                refusals = target.refusals(plan.model_id)
                limit.report(f"adding the candidate {plan.candidate}")
                version = str(plan.bundle_version)
                add_and_look(target, bundle, endpoint, plan.model_id, version=version)
        with taken_out_again(target, plan):
            _wait_for(target, bundle, plan, limit, refusals)
            limit.report("writing the plan")
            _write(target, plan)
    return Rollout(plan, None)


def _write(target: DeployTarget, plan: Plan) -> None:
    """Raises Failure where another one has begun while this one's candidate was loaded."""
    with one_at_a_time(target.plans_lock):
        refuse_in_rollout(target, plan.endpoint)
        write(target.cli, plan)


def keep_newest(target: DeployTarget, plan: Plan, keep: int) -> None:
    """Of the endpoint's bundles the newest `keep` stay in the registry. The rollout has begun, and
    fails by nothing of this: a later command takes out what stays."""
    with suppress(Failure):
        forget_older(
            target, plan.endpoint, plan.old_model_id, keep,
            candidate=plan.model_id, patience_s=_PATIENCE_S,
        )  # fmt: skip


def _checked(target: DeployTarget, bundle: Bundle, endpoint: str) -> tuple[str, Cost]:
    """The endpoint's present model, and what a candidate beside it costs.

    Raises Failure (exit code 2) where it cannot be begun.
    """
    refuse_in_rollout(target, endpoint)
    target.cli.check_version()
    output = target.cli.run("model", "list")
    listed, version = listed_endpoints(output), bundle.manifest.bundle_version
    if endpoint not in listed:
        raise Failure(
            f"there is no endpoint '{endpoint}' to compare with; deploy it: "
            + target.command(f"deploy BUNDLE --endpoint {endpoint}"),
            exit_code=2,
        )
    candidate = candidate_name(endpoint, version)
    _refuse_routes(target, listed_canaries(output), endpoint, candidate)
    if candidate in listed:
        raise Failure(
            f"there is an endpoint '{candidate}' already; if it is left from a rollout that did "
            f"not begin: {target.command(f'remove {candidate}')}",
            exit_code=2,
        )
    model_id = str(listed[endpoint].get("model_id"))
    rows = target.registry().bundles(endpoint)
    if any(row.model_id == model_id and row.bundle_version == version for row in rows):
        raise Failure(f"'{endpoint}' serves bundle {version} already", exit_code=2)
    return model_id, Cost(candidate, len(listed), engine_bytes(bundle), free_bytes(target))


def _refuse_routes(
    target: DeployTarget, routes: Mapping[str, Mapping[str, Any]], endpoint: str, candidate: str
) -> None:
    """Raises Failure (exit code 2) for routes that would have a part of the candidate's requests.

    One that leads to the endpoint alone is as none, and goes with the rollout.
    """
    own = routes.get(endpoint)
    if own is not None and own.get("load_endpoints") != [endpoint]:
        raise Failure(
            f"'{endpoint}' has a canary route already; end it: "
            f"{no_route(str(target.cli.serving_id), endpoint)}",
            exit_code=2,
        )
    for name, route in routes.items():
        prefix = route.get("load_endpoint_prefix")
        if prefix and candidate.startswith(str(prefix)):
            raise Failure(
                f"canary route '{name}' takes every endpoint that begins with '{prefix}', the "
                f"candidate {candidate} too, before it was looked at; give the route the names of "
                "its endpoints instead",
                exit_code=2,
            )


def _wait_for(
    target: DeployTarget, bundle: Bundle, plan: Plan, limit: TimeLimit, refusals: Refusals
) -> None:
    """Raises Failure where the candidate does not answer as it must."""
    limit.report(f"waiting for the candidate {plan.candidate}")
    patience = max(1.0, limit.left() - _TAKING_OUT_S)
    reason = wait_for_golden(
        target.url(plan.candidate), bundle.manifest.golden, plan.bundle_version, patience,
        refusals.reason, key_header(target.key),
    )  # fmt: skip
    if reason is not None:
        raise Failure(f"the candidate {plan.candidate} does not answer as it must: {reason}")


def wish(target: DeployTarget, endpoint: str, wanted: str) -> Rollout:
    """Ask the controller to end it, `wanted` ABORT or PROMOTE. Raises Failure (2) without one."""
    with one_at_a_time(target.plans_lock):
        running = read_all(target.cli).get(endpoint)
        if running is None or running.is_over:
            raise Failure(f"'{endpoint}' is in no rollout", exit_code=2)
        if wanted == PROMOTE and running.plan.shadow:
            raise Failure(
                f"'{endpoint}' is in a shadow, which promotes nothing; end it: "
                f"{target.command(f'rollout abort {endpoint}')}, then begin a rollout",
                exit_code=2,
            )
        if wanted == ABORT or running.plan.wish != ABORT:
            running = replace(running, plan=running.plan.wishing(wanted))
            write(target.cli, running.plan)
    return running


def watch(target: DeployTarget, plan: Plan) -> Iterator[Rollout]:
    """Each change of the rollout, until it is over. A wish of `plan` that another writer undid is
    written again.

    Raises Failure where it was replaced, or no controller has looked at it for long.
    """
    last: Any = ()
    beat, heard = -1, time.monotonic()
    while True:
        now = read_all(target.cli).get(plan.endpoint)
        if now is None or now.plan.id != plan.id:
            raise Failure(f"the rollout of {plan.endpoint} is not in ClearML any more")
        if plan.wish and not now.plan.wish and not now.is_over:
            wish(target, plan.endpoint, plan.wish)
        if now.state is not None and now.state.beat != beat:
            beat, heard = now.state.beat, time.monotonic()
        if time.monotonic() - heard > _SILENT_S:
            raise Failure(
                f"no controller has looked at the rollout of {plan.endpoint} for {_SILENT_S:.0f} "
                f"s; look: {target.look}; what was asked for is done when one is back"
            )
        shown = (now.state.phase, now.state.step, now.state.says) if now.state else None
        if shown != last:
            last = shown
            yield now
        if now.is_over:
            return
        time.sleep(_LOOK_S)
