"""The bundles that are tuned: those given, or else the one that the endpoint serves.

Tested by tests/tune/test_sources.py and tests/stack/test_tune.py.
"""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from transformer_serving.contract.heads import GENERATION
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.bundle.writer import BundleContent, content_of
from transformer_serving.desk.clearml_tools.cli import listed_endpoints
from transformer_serving.desk.deploy.registry import split
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune.knobs import NOT_GENERATION


def by_precision(bundles: Sequence[Bundle]) -> dict[str, Bundle]:
    """Each under its precision, with its engine where there are several engines.

    Raises Failure (exit code 2) for two of one name, for two models, and for a language model.
    """
    engines = {one.manifest.engine for one in bundles}
    named = [
        one.manifest.precision
        if len(engines) == 1
        else f"{one.manifest.engine}-{one.manifest.precision}"
        for one in bundles
    ]
    for name, count in Counter(named).items():
        if count > 1:
            raise Failure(f"--bundle: {count} are {name}; give one of each", exit_code=2)
    for one in bundles:
        if one.endpoint.task == GENERATION:
            raise Failure(NOT_GENERATION, exit_code=2)
        if _model(one) != _model(bundles[0]):
            raise Failure(
                f"--bundle: {one.folder} is of another model than {bundles[0].folder}: its task, "
                "labels or tokenizer differ",
                exit_code=2,
            )
    return dict(zip(named, bundles, strict=True))


def _model(bundle: Bundle) -> tuple[object, ...]:
    """What bundles of one model have in common, whatever computes it."""
    endpoint = bundle.endpoint
    tokenizer = hashlib.sha256((bundle.folder / "tokenizer.json").read_bytes()).hexdigest()
    return endpoint.task, endpoint.classification, endpoint.embedding, tokenizer


def copied(bundles: Sequence[Path], folder: Path) -> list[Bundle]:
    """Copies below `folder`, so that what is written again there is a second name of their bytes
    and not of their owner's. Raises Failure for what is no bundle."""
    found = []
    for number, path in enumerate(bundles):
        open_bundle(path)
        found.append(open_bundle(Path(shutil.copytree(path, folder / str(number)))))
    return found


def fetched(target: DeployTarget, endpoint: str, folder: Path) -> Bundle:
    """The bundle that the endpoint serves, out of the model registry. Raises Failure."""
    listed = listed_endpoints(target.cli.run("model", "list")).get(endpoint)
    if listed is None:
        raise Failure(f"there is no endpoint '{endpoint}'; name a served one", exit_code=2)
    registry = target.registry()
    present, _ = split(registry.bundles(endpoint), str(listed.get("model_id")))
    if present is None:
        raise Failure(
            f"'{endpoint}' serves no bundle that 'deploy' registered; give it with --bundle",
            exit_code=2,
        )
    with registry.fetched(present) as bundle:
        return open_bundle(Path(shutil.copytree(bundle.folder, folder / "served")))


def content(bundle: Bundle) -> BundleContent:
    """What it says; its engine's files are not held."""
    with content_of(bundle, bundle.folder.parent) as found:
        return found
