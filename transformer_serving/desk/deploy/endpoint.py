"""From a bundle to an endpoint that answers: add what is uploaded, look again, wait for golden.

Tested by tests/stack/test_clearml_commands.py, tests/deploy/test_on_a_server.py,
tests/deploy/test_rollback.py and tests/deploy/test_time_limit.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from transformer_serving.contract.gate.refusals import refusals as reasons_against
from transformer_serving.contract.gate.server_facts import MISSING, ServerFacts, installed
from transformer_serving.contract.manifest import Manifest
from transformer_serving.contract.naming import DEPLOYED, name_fault
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.cli import listed_endpoints
from transformer_serving.desk.deploy.endpoint_code import has_code
from transformer_serving.desk.deploy.golden import Differs, Refused, wait_for_golden
from transformer_serving.desk.deploy.model_add import add_arguments
from transformer_serving.desk.deploy.present import asked_for, is_golden, note_served
from transformer_serving.desk.deploy.refusals import Refusals
from transformer_serving.desk.deploy.registry import split
from transformer_serving.desk.deploy.removal import forget_older, forget_unused
from transformer_serving.desk.deploy.rollout_plans import refuse_in_rollout
from transformer_serving.desk.deploy.target import DeployTarget, one_at_a_time
from transformer_serving.desk.deploy.time_limit import TimeLimit, within
from transformer_serving.desk.deploy.upload import upload
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import key_header
from transformer_serving.desk.step_report import StepReport

_ADD_TRIES = 5
_AGAIN = "try again, and what is served by then is not deployed anew"


@dataclass(frozen=True)
class Deployed:
    """What `deploy` did; `changed` is False when the endpoint served this bundle already.

    `forgotten` counts earlier bundles that left the registry.
    """

    endpoint: str
    url: str
    bundle_version: int
    model_id: str | None
    changed: bool
    forgotten: int = 0


def deploy(
    target: DeployTarget,
    bundle: Bundle,
    endpoint: str,
    *,
    timeout_s: float,
    report: StepReport,
    keep: int | None = None,
    spent_s: float = 0.0,
) -> Deployed:
    """Serve a bundle under a name and return when its golden request answers as recorded.

    Of the endpoint's bundles the newest `keep` stay in the registry, None: all. Raises Failure: a
    name that cannot be served (exit code 2), an endpoint that did not come to answer within
    `timeout_s`, which all of it together may take, or, at once, a bundle whose engine answers
    otherwise than the reference where it is served.
    """
    check_name(endpoint)
    check_triton(target, bundle)
    what = f"deploying {endpoint}"
    with within(timeout_s, what, report, look=target.look, spent=spent_s) as limit:
        return _waited_for(target, _added(target, bundle, endpoint, limit), limit, keep)


def deploy_together(
    target: DeployTarget, bundles: Mapping[str, Bundle], *, timeout_s: float, report: StepReport
) -> list[Deployed]:
    """Each bundle under its name, as `deploy` does: one is loaded and proven while the next one is
    uploaded. `timeout_s` is for all of them together.

    Raises Failure once every other one is served: with what is said of each that is not.
    """
    for endpoint, bundle in bundles.items():
        check_name(endpoint)
        check_triton(target, bundle)
    begun: list[_Added] = []
    done: list[Deployed] = []
    failures: list[Failure] = []
    what = f"deploying {' and '.join(bundles)}"
    with within(timeout_s, what, report, look=target.look, advice=_AGAIN) as limit:
        for name, bundle in bundles.items():
            with _noted(failures):
                begun.append(_added(target, bundle, name, limit))
        for at, one in enumerate(begun):
            with _noted(failures):
                done.append(_waited_for(target, one, limit.share(len(begun) - at), None))
    if failures:
        said = "; ".join(map(str, failures))
        raise Failure(said, exit_code=max(one.exit_code for one in failures))
    return done


@contextmanager
def _noted(failures: list[Failure]) -> Iterator[None]:
    try:
        yield
    except Failure as failure:
        failures.append(failure)


@dataclass(frozen=True)
class _Added:
    """An endpoint that was added and has yet to answer; `way_back` from it, None: there is none.

    Where it was there already, `changed` is False, and not every worker may have it yet.
    """

    endpoint: str
    manifest: Manifest
    model_id: str
    refusals: Refusals
    way_back: str | None
    changed: bool


def _added(target: DeployTarget, bundle: Bundle, endpoint: str, limit: TimeLimit) -> _Added:
    limit.report(f"asking whether {endpoint} serves it already")
    reply = target.ask(endpoint, bundle.manifest.golden.request)
    present = asked_for(target, bundle, endpoint) if is_golden(reply, bundle.manifest) else None
    if present is not None:
        # In a rollout of this bundle that may have been the candidate's answer.
        refuse_in_rollout(target, endpoint)
        return _begun(target, bundle, endpoint, present, changed=False)
    with one_at_a_time(target.lock, report=limit.report):
        limit.report(f"asking whether {endpoint} is in a rollout")
        refuse_in_rollout(target, endpoint)
        target.cli.check_version()
        limit.report(f"noting what {endpoint} serves until now")
        note_served(target, endpoint, reply)
        limit.report(f"uploading {endpoint}")
        added = _begun(target, bundle, endpoint, upload(target, bundle, endpoint, limit))
        limit.report(f"adding {endpoint}")
        _refuse_begun(target, added)
        with _healing_told(target, added, limit):
            add_and_look(target, bundle, endpoint, added.model_id)
    return added


def _begun(
    target: DeployTarget, bundle: Bundle, endpoint: str, model_id: str, *, changed: bool = True
) -> _Added:
    _, before = split(target.registry().bundles(endpoint), model_id)
    back = f"the bundle before comes back with '{target.command(f'rollback {endpoint}')}'"
    way_back = None if before is None else back
    refusals = target.refusals(model_id)
    return _Added(endpoint, bundle.manifest, model_id, refusals, way_back, changed)


def _refuse_begun(target: DeployTarget, added: _Added) -> None:
    """Raises Failure (exit code 2) for a rollout that began while the bundle was uploaded, which
    it would end."""
    try:
        refuse_in_rollout(target, added.endpoint)
    except Failure:
        # Why it is refused matters more.
        with suppress(Failure):
            forget_unused(target, [added.model_id])
        raise


class Undone(Failure):
    """Whatever was added, other writers' changes were without it."""


@contextmanager
def _healing_told(target: DeployTarget, added: _Added, limit: TimeLimit) -> Iterator[None]:
    """Where `model add` is cut short or fails: it changes an endpoint in two steps.

    What was uploaded for it leaves the registry where it failed and nothing names that.
    """
    advice = limit.advice
    limit.advice = (
        f"{added.endpoint} may have the code of one bundle beside the model of another, which a "
        "new worker refuses; a deploy of either makes it whole: "
        + target.command(f"deploy BUNDLE --endpoint {added.endpoint}")
    )
    try:
        yield
    except Failure as failure:
        said, limit.advice = f"{failure}; {limit.advice}", advice
        # Another writer's older copy may yet bring back the entry that names the model.
        if not isinstance(failure, Undone):
            # Why it failed matters more.
            with suppress(Failure):
                forget_unused(target, [added.model_id])
        raise Failure(said, exit_code=failure.exit_code) from failure
    limit.advice = advice


def _waited_for(
    target: DeployTarget, added: _Added, limit: TimeLimit, keep: int | None
) -> Deployed:
    endpoint, version = added.endpoint, added.manifest.bundle_version
    limit.report(f"waiting for {endpoint}")
    until_golden(target, endpoint, added.manifest, limit, added.refusals, way_back=added.way_back)
    limit.report(f"noting that {endpoint} was served")
    target.registry().mark_served(endpoint, version)
    if not added.changed:
        return Deployed(endpoint, target.url(endpoint), version, None, False)
    forgotten = 0 if keep is None else forget_older(target, endpoint, added.model_id, keep)
    return Deployed(endpoint, target.url(endpoint), version, added.model_id, True, forgotten)


def until_golden(
    target: DeployTarget, endpoint: str, manifest: Manifest, limit: TimeLimit, refusals: Refusals,
    *, advice: str | None = None, way_back: str | None = None,
) -> None:  # fmt: skip
    """Wait for the golden answer of exactly this bundle. Raises Failure with why none came.

    A bundle that answers otherwise is marked so: no rollback goes to it. `advice` is how to go on
    where it is not served, and the limit's own where it may yet be; `way_back` is both, and stands
    in a refusal already.
    """
    reason = wait_for_golden(
        target.url(endpoint),
        manifest.golden,
        manifest.bundle_version,
        limit.left(),
        refusals.reason,
        key_header(target.key),
    )
    if reason is None:
        return
    look = f"look: {target.look}"
    if isinstance(reason, Refused):
        said = [f"{endpoint}: {reason}", advice]
    elif isinstance(reason, Differs):
        # What is told below matters more than the mark.
        with suppress(Failure):
            target.registry().mark_wrong(endpoint, manifest.bundle_version)
        said = [f"{endpoint} does not answer as it must: {reason}", look, advice or way_back]
    else:
        why = f"{endpoint} did not answer within {limit.seconds:.0f} s: {reason}"
        said = [why, look, limit.late, way_back or limit.advice]
    raise Failure("; ".join(part for part in said if part))


def check_name(endpoint: str) -> None:
    if fault := name_fault(endpoint, DEPLOYED):
        raise Failure(fault, exit_code=2)


def check_triton(target: DeployTarget, bundle: Bundle) -> None:
    """Raises Failure (exit code 2) for an engine that the embedded stack's Triton has not.

    It has the packages of this environment.
    """
    from transformer_serving.engine.bundle_config import config_faults

    torch = None if target.triton is None else installed("torch") or MISSING
    server = ServerFacts(name="the embedded stack", triton=target.triton, torch=torch)
    engines = ("vllm", "torch")
    asked = (bundle.manifest, bundle.folder, server, config_faults)
    for refusal in reasons_against(*asked, checks=engines):
        raise Failure(f"{bundle.folder} is not served from here: {refusal.message}", exit_code=2)


def add_and_look(
    target: DeployTarget, bundle: Bundle, endpoint: str, model_id: str, *,
    version: str | None = None,
) -> None:  # fmt: skip
    """Add the endpoint, or a version of it, and look whether it is there, with the bundle's code:
    another writer may have undone it.

    clearml-serving rewrites the whole configuration on every change, so of two writers at one
    time one is lost.
    """
    name = f"{endpoint}/{version}" if version else endpoint
    for _ in range(_ADD_TRIES):
        versioned = ["--version", version] if version else []
        target.cli.run(*add_arguments(bundle, endpoint, model_id), *versioned)
        entry = listed_endpoints(target.cli.run("model", "list")).get(name, {})
        is_there = entry.get("model_id") == model_id
        if is_there and has_code(target.cli, entry, bundle.preprocess) is not False:
            return
    raise Undone(
        f"{name} was added {_ADD_TRIES} times and every time somebody else's change undid it; "
        "let only one 'clearml-serving' write at a time"
    )
