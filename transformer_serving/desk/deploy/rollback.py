"""Back to the bundle before: found in the model registry, fetched, verified, added, waited for.

Tested by tests/deploy/test_rollback.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.cli import listed_endpoints
from transformer_serving.desk.deploy.endpoint import add_and_look, until_golden
from transformer_serving.desk.deploy.present import asked_for
from transformer_serving.desk.deploy.registry import (
    GOAL,
    LEAVING,
    WITHDRAWN,
    ModelRegistry,
    Registered,
    split,
)
from transformer_serving.desk.deploy.rollout_plans import refuse_in_rollout
from transformer_serving.desk.deploy.target import DeployTarget, one_at_a_time
from transformer_serving.desk.deploy.time_limit import OutOfTime, TimeLimit, lift_alarm, within
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport


@dataclass(frozen=True)
class RolledBack:
    """What `rollback` did; `withdrawn_version` is None where the endpoint had no bundle of ours.

    Of several that were left it is the newest.
    """

    endpoint: str
    url: str
    bundle_version: int
    withdrawn_version: int | None
    model_id: str


def rollback(
    target: DeployTarget,
    endpoint: str,
    *,
    timeout_s: float,
    report: StepReport,
    spent_s: float = 0.0,
) -> RolledBack:
    """Serve the bundle that the endpoint served before the present one.

    The present one is marked in the registry and is never rolled back to. Where an earlier call was
    interrupted, this one goes on with it; where its bundle did not come to answer, this one goes
    past that. Raises Failure: nothing to go back to (exit code 2), or the earlier bundle did not
    come to answer within `timeout_s`, which all of it together may take.
    """
    what = f"rolling {endpoint} back"
    with within(timeout_s, what, report, look=target.look, spent=spent_s) as limit:
        return _rollback(target, endpoint, limit)


def _rollback(target: DeployTarget, endpoint: str, limit: TimeLimit) -> RolledBack:
    registry, report = target.registry(), limit.report
    by_hand = target.command(f"deploy BUNDLE --endpoint {endpoint}")
    with one_at_a_time(target.lock, report=report):
        report(f"asking whether {endpoint} is in a rollout")
        refuse_in_rollout(target, endpoint)
        target.cli.check_version()
        report(f"looking for what {endpoint} served before")
        configured = _configured(target, endpoint)
        left, to = _way_back(registry, endpoint, configured, by_hand)
        goes_on = to.model_id == configured
        report(f"fetching bundle {to.bundle_version}")
        with _fetched(registry, to, by_hand) as bundle:
            # Nothing is changed where its answer could not be asked for.
            target.ask(endpoint, bundle.manifest.golden.request)
            report(f"adding {endpoint}")
            # What was interrupted may have been refused before this one looks.
            refusals = target.refusals(to.model_id, earlier=goes_on)
            limit.advice = _advice(left, by_hand)
            # One that is gone on with has these marks already.
            registry.mark_begun(left, to)
            # What was interrupted since may be a deploy, whose code lies beside this model.
            if not goes_on or asked_for(target, bundle, endpoint) is None:
                add_and_look(target, bundle, endpoint, to.model_id)
            manifest = bundle.manifest
    report(f"waiting for {endpoint}")
    limit.late = _late(target.url(endpoint), to)
    with _given_up_where_it_fails(registry, endpoint, to):
        advice = f"{limit.advice}; another rollback goes past bundle {to.bundle_version}"
        until_golden(target, endpoint, manifest, limit, refusals, advice=advice)
    limit.late = None
    report(f"noting what {endpoint} serves")
    # This withdraws what was left. Not before: where it fails, the way back to that stays open.
    registry.mark_served(endpoint, to.bundle_version)
    version = left.bundle_version if left else None
    return RolledBack(endpoint, target.url(endpoint), to.bundle_version, version, to.model_id)


@contextmanager
def _fetched(registry: ModelRegistry, to: Registered, by_hand: str) -> Iterator[Bundle]:
    """Raises Failure with the way on where it cannot be had: the operator may have the bundle."""
    with ExitStack() as stack:
        try:
            bundle = stack.enter_context(registry.fetched(to))
        except Failure as failure:
            raise Failure(
                f"{failure}; nothing is changed; serve bundle {to.bundle_version}, or another one, "
                f"from its folder: {by_hand}",
                exit_code=failure.exit_code,
            ) from failure
        yield bundle


@contextmanager
def _given_up_where_it_fails(
    registry: ModelRegistry, endpoint: str, to: Registered
) -> Iterator[None]:
    """An interruption is none: the next rollback then waits on for the same bundle."""
    try:
        yield
    except (Failure, OutOfTime):
        lift_alarm()
        # Why there is no answer matters more than the mark.
        with suppress(Failure):
            registry.mark_given_up(endpoint, to.bundle_version)
        raise


def _configured(target: DeployTarget, endpoint: str) -> str:
    """The model that is asked for. Raises Failure (exit code 2) where there is no such endpoint."""
    listed = listed_endpoints(target.cli.run("model", "list")).get(endpoint)
    if listed is None:
        raise Failure(f"there is no endpoint '{endpoint}'", exit_code=2)
    return str(listed.get("model_id"))


def _way_back(
    registry: ModelRegistry, endpoint: str, configured: str, by_hand: str
) -> tuple[Registered | None, Registered]:
    """What a rollback leaves, and what it goes to. Raises Failure (exit code 2) without a bundle to
    go to.

    One that was interrupted has its bundle configured already.
    """
    rows = registry.bundles(endpoint)
    present, before = split(rows, configured)
    if present is not None and GOAL in present.tags:
        version = present.bundle_version
        left = (row for row in rows if LEAVING in row.tags and row.bundle_version != version)
        return next(left, None), present
    if before is None:
        raise Failure(
            f"'{endpoint}' served no other bundle before this one{_but(rows, present)}; deploy the "
            f"one you want: {by_hand}",
            exit_code=2,
        )
    return present, before


def _but(rows: Sequence[Registered], present: Registered | None) -> str:
    """Those that rollbacks left, which no further one goes to."""
    here = present.bundle_version if present else None
    left = [row.bundle_version for row in rows if {WITHDRAWN, LEAVING} & set(row.tags)]
    named = ", ".join(str(version) for version in dict.fromkeys(left) if version != here)
    return f" but what was rolled back since ({named}), whose folders you may have" if named else ""


def _late(url: str, to: Registered) -> str:
    """A call that follows one which was too short would leave what has come meanwhile."""
    return (
        f"bundle {to.bundle_version} may come yet: see first whether {url} answers from it (header "
        f"{VERSION_HEADER}), as another rollback goes past it"
    )


def _advice(left: Registered | None, by_hand: str) -> str:
    """How to go on after a rollback that failed: it has already changed what is asked for."""
    if left is None:
        return f"deploy the bundle that you want with '{by_hand}'"
    return f"bundle {left.bundle_version} is served again with '{by_hand}'"
