"""A demo's endpoint that its user has given a model of their own: the demo does not take it over.

Tested by tests/demo/test_left_alone.py, tests/deploy/test_on_a_server.py and
tests/stack/test_commands.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.cli import listed_canaries, listed_endpoints
from transformer_serving.desk.deploy.rollout_plans import configuration, rollouts_of
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.failure import Failure


def served_instead(target: DeployTarget, demos: Mapping[str, Bundle]) -> dict[str, str]:
    """By those of the endpoints' names that serve something else than a bundle of the demo, what.

    One that another checkout has built is the demo's too, and what cannot be read is its user's, as
    is what is shared out. What answers is not asked: it may be the bundle before.
    """
    sections = configuration(target.cli)
    named = "\n".join(sections.get(name, "") for name in ("endpoints", "canary"))
    # The command takes seconds, of which a first start needs none.
    if not any(name in named for name in demos):
        return {}
    rollouts = {name: one for name, one in rollouts_of(sections).items() if not one.is_over}
    listed = target.cli.run("model", "list")
    routes, endpoints = listed_canaries(listed), listed_endpoints(listed)
    found: dict[str, str | None] = {}
    for name, demo in demos.items():
        if name in rollouts:
            found[name] = f"is in a rollout of bundle {rollouts[name].plan.bundle_version}"
        elif name in routes:
            found[name] = "is a canary route"
        elif name in endpoints:
            found[name] = _instead(target, demo, name, endpoints[name].get("model_id"))
    return {name: said for name, said in found.items() if said is not None}


def _instead(target: DeployTarget, demo: Bundle, endpoint: str, model_id: object) -> str | None:
    """What that model is; None: a bundle of the demo."""
    registry = target.registry()
    row = next((row for row in registry.bundles(endpoint) if row.model_id == model_id), None)
    if row is None:
        return "serves a model that no 'deploy' has brought"
    if row.bundle_version == demo.manifest.bundle_version:
        return None
    said = f"serves bundle {row.bundle_version}"
    try:
        with registry.fetched(row) as bundle:
            same = _model(bundle) == _model(demo)
            return None if same else f"{said}, of the model {bundle.manifest.source.get('model')}"
    except Failure:
        return said


def _model(bundle: Bundle) -> tuple[object, ...]:
    """What the demo's bundles of every checkout have in common."""
    meaning = bundle.endpoint.classification
    return bundle.manifest.source, bundle.manifest.task, meaning and meaning.labels
