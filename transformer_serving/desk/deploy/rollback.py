"""Back to the bundle before: found in the model registry, fetched, verified, added, waited for."""

from __future__ import annotations

from dataclasses import dataclass

from transformer_serving.desk.clearml_tools.cli import listed_endpoints
from transformer_serving.desk.deploy.endpoint import add_and_look, until_golden
from transformer_serving.desk.deploy.registry import Registered, split
from transformer_serving.desk.deploy.rollout_plans import refuse_in_rollout
from transformer_serving.desk.deploy.target import DeployTarget, one_at_a_time
from transformer_serving.desk.deploy.time_limit import TimeLimit, within
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport


@dataclass(frozen=True)
class RolledBack:
    """What `rollback` did; `withdrawn_version` is None where the endpoint had no bundle of ours."""

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

    The present one is marked in the registry and is never rolled back to. Raises Failure: nothing
    to go back to (exit code 2), or the earlier bundle did not come to answer within `timeout_s`,
    which all of it together may take.
    """
    what = f"rolling {endpoint} back"
    with within(timeout_s, what, report, look=target.look, spent=spent_s) as limit:
        return _rollback(target, endpoint, limit)


def _rollback(target: DeployTarget, endpoint: str, limit: TimeLimit) -> RolledBack:
    registry, report = target.registry(), limit.report
    report("waiting for another deploy of this machine to end")
    with one_at_a_time(target.lock):
        refuse_in_rollout(target.cli, endpoint)
        report(f"looking for what {endpoint} served before")
        listed = listed_endpoints(target.cli.run("model", "list")).get(endpoint)
        if listed is None:
            raise Failure(f"there is no endpoint '{endpoint}'", exit_code=2)
        rows = registry.bundles(endpoint)
        present, before = split(rows, str(listed.get("model_id")))
        if before is None:
            raise Failure(
                f"'{endpoint}' served no other bundle before this one; deploy the one you want: "
                f"transformer-serving deploy BUNDLE --endpoint {endpoint}",
                exit_code=2,
            )
        report(f"fetching bundle {before.bundle_version}")
        with registry.fetched(before) as bundle:
            # Nothing is changed where its answer could not be asked for.
            target.ask(endpoint, bundle.manifest.golden.request)
            report(f"adding {endpoint}")
            refusals = target.refusals(before.model_id)
            add_and_look(target, bundle, endpoint, before.model_id)
            manifest = bundle.manifest
    report(f"waiting for {endpoint}")
    until_golden(target, endpoint, manifest, limit, refusals, advice=_advice(endpoint, present))
    if present is not None:
        # Not before: where this fails, the way back to it stays open.
        registry.mark_withdrawn(endpoint, present.bundle_version)
    return RolledBack(
        endpoint,
        target.url(endpoint),
        before.bundle_version,
        present.bundle_version if present else None,
        before.model_id,
    )


def _advice(endpoint: str, left: Registered | None) -> str:
    """How to go on after a rollback that failed: it has already changed what is asked for."""
    again = f"transformer-serving deploy BUNDLE --endpoint {endpoint}"
    if left is None:
        return f"deploy the bundle that you want with '{again}'"
    return f"bundle {left.bundle_version} is served again with '{again}'"
