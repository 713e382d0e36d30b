"""Taking endpoints out of the serving service, and their bundles out of the model registry."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from transformer_serving.desk.clearml_tools.cli import COMMAND_S, ClearmlCli, listed_endpoints
from transformer_serving.desk.deploy.leftover_code import forget_code
from transformer_serving.desk.deploy.registry import split
from transformer_serving.desk.deploy.rollout_plans import drop_over, refuse_in_rollout
from transformer_serving.desk.deploy.target import DeployTarget, one_at_a_time
from transformer_serving.desk.failure import Failure

_TRIES = 5
# For another command that writes plans, where nothing is lost without.
_PLANS_S = 30.0


@dataclass(frozen=True)
class Removed:
    """What `remove` did; `removed` is False where only bundles were left to forget."""

    endpoint: str
    removed: bool
    forgotten: int


def remove(target: DeployTarget, endpoint: str, *, forget: bool = False) -> Removed:
    """Take an endpoint out of the serving service, and with `forget` its bundles out of the
    registry, also those of an endpoint that was removed before.

    Raises Failure (2) when there is no endpoint, and nothing to forget either, or one that stays.
    """
    with one_at_a_time(target.lock):
        refuse_in_rollout(target, endpoint)
        listed = listed_endpoints(target.cli.run("model", "list"))
        rows = target.registry().bundles(endpoint) if forget else []
        if endpoint not in listed and not rows:
            raise Failure(f"there is no endpoint '{endpoint}'", exit_code=2)
        if endpoint in listed:
            target.cli.check_version()
            take_out(target.cli, endpoint)
        forgotten = forget_unused(target, [row.model_id for row in rows])
        with suppress(Failure):
            drop_over(target, endpoint, _PLANS_S)
        _forget_code(target)
    return Removed(endpoint, endpoint in listed, forgotten)


def take_out(cli: ClearmlCli, endpoint: str, left: Callable[[], float] = lambda: COMMAND_S) -> None:
    """Remove an endpoint and look whether it is gone: another writer may have put it back.

    `left` gives the seconds that the next command has. Raises Failure for one that stays.
    """
    for _ in range(_TRIES):
        cli.run("model", "remove", "--endpoint", endpoint, timeout_s=left())
        if endpoint not in listed_endpoints(cli.run("model", "list", timeout_s=left())):
            return
    raise Failure(
        f"{endpoint} was removed {_TRIES} times and every time somebody else's change put it back; "
        "let only one 'clearml-serving' write at a time"
    )


def forget_older(
    target: DeployTarget, endpoint: str, model_id: str, keep: int, *,
    candidate: str = "", patience_s: float | None = None,
) -> int:  # fmt: skip
    """Leave the newest `keep` bundles of an endpoint in the registry; how many were not.

    The present one and the one that `rollback` would go to stay in any case, and so does the
    candidate of a rollout. Raises Failure where another deploy lasts longer than `patience_s`.
    """
    with one_at_a_time(target.lock, patience_s):
        rows = target.registry().bundles(endpoint)
        kept = {model_id, candidate, *(row.model_id for row in rows[:keep])}
        kept |= {row.model_id for row in split(rows, model_id) if row is not None}
        old = [row.model_id for row in rows if row.model_id not in kept]
        forgotten = forget_unused(target, old)
        _forget_code(target)
        return forgotten


def _forget_code(target: DeployTarget) -> None:
    """What was asked for is done, and fails by nothing of this: the next command takes out what
    stays."""
    with suppress(Failure):
        forget_code(target.cli)


def forget_unused(target: DeployTarget, models: list[str]) -> int:
    """Those that nothing in the service names: an endpoint added by hand may serve one of them."""
    if not models:
        return 0
    listed = target.cli.run("model", "list")
    unused = [model for model in models if model not in listed]
    registry = target.registry()
    for model in unused:
        registry.forget(model)
    return len(unused)
