"""A bundle's upload into ClearML's model registry, and out of it again where it is ended.

Tested by tests/deploy/test_upload.py, tests/deploy/test_rollback.py and
tests/stack/test_host_traps.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from transformer_serving.desk.bundle.folder import Bundle
from transformer_serving.desk.deploy.registry import registry_folder
from transformer_serving.desk.deploy.target import DeployTarget
from transformer_serving.desk.deploy.time_limit import TimeLimit, cleaning_up
from transformer_serving.desk.failure import Failure

PROJECT = "transformer-serving"
_UPLOAD_TRIES = 3
# What ends an upload is often that ClearML does not answer.
_CLEAN_UP_S = 5.0


def upload(target: DeployTarget, bundle: Bundle, endpoint: str, limit: TimeLimit) -> str:
    """The id of a model that has its file's address.

    However large it is, only the command's time ends it, and what was registered of it until then
    is taken out again.
    clearml-serving writes the model's project and its address at one time, each from what it read
    before, so that on a busy machine the address may be lost.
    """
    name = f"{endpoint} {bundle.manifest.bundle_version}"
    registry = target.registry()
    for _ in range(_UPLOAD_TRIES):
        destination = f"{target.files_host.rstrip('/')}/bundles/{uuid.uuid4().hex}"
        with _forgotten(target, endpoint, destination):
            with registry_folder(bundle) as folder:
                model_id = target.cli.upload_model(
                    name, PROJECT, folder, destination, timeout_s=limit.after_alarm()
                )
            if registry.has_address(model_id):
                return model_id
            registry.forget(model_id)
    raise Failure(
        f"the model was uploaded {_UPLOAD_TRIES} times and every time clearml-serving lost its "
        "file's address; try again when the machine has less to do"
    )


@contextmanager
def _forgotten(target: DeployTarget, endpoint: str, destination: str) -> Iterator[None]:
    """Where the block does not end well, the model whose file goes to `destination`: of this upload
    and no other. ClearML's SDK registers it before it sends the file.
    """
    try:
        yield
    except BaseException:
        # Why it ended matters more; what stays is one of the bundles that later commands forget.
        with cleaning_up(_CLEAN_UP_S), suppress(Exception):
            registry = target.registry()
            for row in registry.bundles(endpoint):
                if row.uri.startswith(f"{destination}/"):
                    registry.forget(row.model_id)
        raise
