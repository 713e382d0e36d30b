"""What an endpoint serves before a change: what it answers, and with what it is configured.

Tested by tests/deploy/test_rollback.py, tests/deploy/test_rollout.py and
tests/deploy/test_on_a_server.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from transformer_serving.contract.golden import agrees
from transformer_serving.contract.manifest import Manifest
from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.cli import listed_endpoints
from transformer_serving.desk.deploy.endpoint_code import has_code
from transformer_serving.desk.deploy.golden import Reply
from transformer_serving.desk.deploy.registry import GOAL, LEAVING, SERVED, WRONG, Registered
from transformer_serving.desk.deploy.target import DeployTarget


def is_golden(reply: Reply, manifest: Manifest) -> bool:
    """Whether it is the bundle's golden answer, from the bundle's version."""
    return (
        reply.status == 200
        and reply.version == manifest.bundle_version
        and agrees(reply.body, manifest.golden.answer, manifest.golden.tolerance)
    )


def asked_for(target: DeployTarget, bundle: Bundle, endpoint: str) -> str | None:
    """The model that the endpoint is configured with, where that is a registration of the bundle
    and its preprocess file is the bundle's, as far as it can be read; None: it is not.

    The one that answers may be the one before: it serves on where the configured one was refused,
    but a new worker or Triton would only find that.
    """
    rows = target.registry().bundles(endpoint)
    version = bundle.manifest.bundle_version
    same = [row.model_id for row in rows if row.bundle_version == version]
    entry = _entry(target, endpoint)
    model_id = str(entry.get("model_id"))
    if model_id not in same or has_code(target.cli, entry, bundle.preprocess) is False:
        return None
    return model_id


def note_served(target: DeployTarget, endpoint: str, reply: Reply) -> None:
    """Tag the bundle that has answered, where it is the configured one, before another takes its
    place.

    It may have come to answer after its `deploy` gave up: a rollback goes to it all the same, but
    not to one whose `deploy` found its answer wrong. A rollback that is not over ends by that
    answer, too.
    """
    if reply.status != 200:
        return
    registry = target.registry()
    rows = registry.bundles(endpoint)
    same = [row for row in rows if row.bundle_version == reply.version]
    if not same or WRONG in same[0].tags:
        return
    is_known = SERVED in same[0].tags and not any({LEAVING, GOAL} & set(row.tags) for row in rows)
    if not is_known and _is_configured(target, endpoint, same):
        registry.mark_served(endpoint, same[0].bundle_version)


def _is_configured(target: DeployTarget, endpoint: str, rows: Sequence[Registered]) -> bool:
    """Whether the endpoint is configured with one of the registrations."""
    return _entry(target, endpoint).get("model_id") in [row.model_id for row in rows]


def _entry(target: DeployTarget, endpoint: str) -> Mapping[str, object]:
    """The endpoint as it is configured; empty where there is none."""
    return listed_endpoints(target.cli.run("model", "list")).get(endpoint, {})
