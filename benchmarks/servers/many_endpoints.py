"""A serving service with many endpoints of our model, and the models of its Triton."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.servers import tritons
from benchmarks.servers.site import OURS, Site, service_of_one
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.cli import ClearmlCli, listed_endpoints
from transformer_serving.desk.deploy.model_add import add_arguments


def service(site: Site, title: str, names: Sequence[str]) -> dict[str, str]:
    """The variables that make an app serve endpoints of these names.

    The first is added by clearml-serving's own command, which takes seconds; the others are as it.
    """
    bundle, model = site.models.bundles["openvino"], site.uploaded[OURS]
    variables = service_of_one(site, title, add_arguments(bundle, names[0], model))
    serving = variables["CLEARML_SERVING_TASK_ID"]
    row = listed_endpoints(ClearmlCli(site.environment, serving).run("model", "list"))[names[0]]
    rows = {name: {**row, "serving_url": name} for name in names}
    write_endpoints(ClearmlApi(site.environment), serving, rows)
    return variables


def write_endpoints(api: ClearmlApi, serving: str, rows: Mapping[str, Any]) -> None:
    """Give a serving service these endpoints, in the form that clearml-serving keeps them in."""
    written = {"name": "endpoints", "type": "json", "value": json.dumps(rows)}
    api.call(
        "tasks.edit_configuration", task=serving, configuration=[written],
        replace_configuration=False, force=True,
    )  # fmt: skip


def repository(site: Site, work: Path, names: Sequence[str]) -> None:
    """The models of these endpoints and no others at `work`/models."""
    models = tritons.copy_repository(site.repository, work)
    for folder in models.iterdir():
        if folder.name != OURS:
            shutil.rmtree(folder)
    tritons.multiply(models, OURS, names)
