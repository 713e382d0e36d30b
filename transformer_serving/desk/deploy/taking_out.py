"""A candidate that nobody knows of yet goes again where its rollout does not begin.

Tested by tests/deploy/test_rollout.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from transformer_serving.contract.rollout import ABORT, Plan
from transformer_serving.desk.clearml_tools.cli import listed_endpoints
from transformer_serving.desk.deploy.removal import take_out
from transformer_serving.desk.deploy.rollout_plans import read_all, write
from transformer_serving.desk.deploy.target import DeployTarget, one_at_a_time
from transformer_serving.desk.deploy.time_limit import OutOfTime, lift_alarm
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import undisturbed

# For the lock and for all commands together: nothing else ends the clean-up before kill -9. The one
# that is begun last has some seconds.
_PATIENCE_S, _LAST_S = 30.0, 5.0


@contextmanager
def taken_out_again(target: DeployTarget, plan: Plan, *, locked: bool = False) -> Iterator[None]:
    """Where the block does not end well, whatever the user or the alarm does meanwhile.

    `locked`: who calls holds the target's lock. Raises Failure naming the command that is left to
    do where the candidate cannot be taken out.
    """
    try:
        yield
    except BaseException as ended:
        lift_alarm()
        words, is_aborted = str(ended) or "it was ended", False
        try:
            ends = time.monotonic() + _PATIENCE_S
            with undisturbed(), _lock(target, held=locked):
                # With the lock no plan is written yet.
                is_aborted = not locked and _is_aborted(target, plan, ends)
                if not is_aborted:
                    _take_out(target, plan, ends)
        except Failure as fault:
            raise Failure(
                f"{words}; {fault}; the candidate {plan.candidate} is left: "
                + target.command(f"remove {plan.candidate}")
            ) from ended
        if is_aborted:
            raise Failure(
                f"{words}; the rollout had begun and is aborted: the candidate goes once no worker "
                "asks it"
            ) from None
        if isinstance(ended, Failure | OutOfTime):
            raise Failure(
                f"{words}; the candidate is taken out again, {plan.endpoint} is as it was",
                exit_code=getattr(ended, "exit_code", 1),
            ) from None
        raise


def _lock(target: DeployTarget, *, held: bool) -> AbstractContextManager[None]:
    return nullcontext() if held else one_at_a_time(target.lock, _PATIENCE_S)


def _is_aborted(target: DeployTarget, plan: Plan, ends: float) -> bool:
    """Where the plan stands in ClearML the controller takes its steps by now, and is told to go
    back. Raises Failure where it cannot be told."""
    running = read_all(target.cli).get(plan.endpoint)
    if running is None or running.plan.id != plan.id:
        return False
    with one_at_a_time(target.plans_lock, max(_LAST_S, ends - time.monotonic())):
        write(target.cli, running.plan.wishing(ABORT))
    return True


def _take_out(target: DeployTarget, plan: Plan, ends: float) -> None:
    def left() -> float:
        return max(_LAST_S, ends - time.monotonic())

    listed = listed_endpoints(target.cli.run("model", "list", timeout_s=left()))
    # Of the same name there may be somebody else's by now.
    if listed.get(plan.candidate, {}).get("model_id") == plan.model_id:
        take_out(target.cli, plan.candidate, left)
    if listed.get(plan.endpoint, {}).get("model_id") == plan.old_model_id:
        # `model add` has named the candidate's under the endpoint's own name, too, which would look
        # like an addition that another writer undid.
        with suppress(Failure):
            target.cli.name_model(plan.endpoint, plan.old_model_id)
    # Its upload is of no use to anybody else; where it stays, a later command takes it out.
    with suppress(Failure):
        target.registry().forget(plan.model_id)
