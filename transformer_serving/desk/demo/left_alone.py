"""A demo's endpoint that its user has given a model of their own: the demo does not take it over.

Tested by tests/demo/test_left_alone.py and tests/stack/test_commands.py.
"""

from __future__ import annotations

from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.clearml_tools.cli import listed_endpoints
from transformer_serving.desk.deploy.present import is_golden
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.failure import Failure


def served_instead(target: DeployTarget, demo: Bundle, endpoint: str) -> str | None:
    """What the endpoint serves that is none of the demo's bundles; None: nothing, or one of them.

    One that another checkout has built is the demo's too, and what cannot be read is its user's.
    """
    if is_golden(target.ask(endpoint, demo.manifest.golden.request), demo.manifest):
        return None
    entry = listed_endpoints(target.cli.run("model", "list")).get(endpoint)
    if entry is None:
        return None
    registry = target.registry()
    model_id = entry.get("model_id")
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
