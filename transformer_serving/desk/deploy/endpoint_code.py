"""Whether an endpoint has its bundle's preprocess file, as ClearML names it and as it is stored.

clearml-serving uploads the file to an address that all of the endpoint's bundles share, registers
it and writes the endpoint, each by a call of its own. One `model add` that ends in between leaves
the new file beside the old model, and where it was only uploaded, under the old one's hash.

Tested by tests/deploy/test_on_a_server.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.clearml_tools.cli import ClearmlCli
from transformer_serving.desk.failure import Failure


def has_code(cli: ClearmlCli, entry: Mapping[str, object], preprocess: Path) -> bool | None:
    """Of an endpoint as `listed_endpoints` gives it; None where the stored file cannot be read."""
    api, wanted = ClearmlApi(cli.environment), preprocess.read_bytes()
    row = _artifact(api.call("tasks.get_by_id", task=cli.serving_id)["task"], entry)
    if row is None or row.get("hash") != hashlib.sha256(wanted).hexdigest():
        return False
    with TemporaryDirectory(prefix="transformer-serving-") as scratch:
        stored = Path(scratch) / "preprocess.py"
        try:
            api.download(str(row.get("uri")), stored)
        except Failure:
            return None
        return stored.read_bytes() == wanted


def _artifact(task: Mapping[str, Any], entry: Mapping[str, object]) -> Mapping[str, Any] | None:
    rows = (task.get("execution") or {}).get("artifacts") or ()
    return next((row for row in rows if row.get("key") == entry.get("preprocess_artifact")), None)
