"""The ClearML server that an --env-file gives to containers, as this machine reaches it.

Tested by tests/doctor/test_env_file.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from transformer_serving.desk.compose.variables import CLEARML, HOST_NAME
from transformer_serving.desk.env_file import read_env_file
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import LOOPBACK, past_proxies

# What a shell would else have of another server.
VARIABLES = tuple(row.name for row in CLEARML.variables)
_API = "CLEARML_API_HOST"


def server_variables(env_file: Path) -> dict[str, str]:
    """Its CLEARML_* variables that are not empty, and what keeps this machine's own address from a
    proxy. Raises Failure where none names the API, and for one that cannot be read."""
    values = read_env_file(env_file, names=VARIABLES)
    if not values.get(_API):
        raise Failure(
            f"--env-file {env_file}: {_API} is empty: put the ClearML server's address there; for "
            "that of --profile local its own container prints the variables (docs/compose.md)",
            exit_code=2,
        )
    named = {
        name: values[name].replace(f"//{HOST_NAME}", f"//{LOOPBACK}")
        for name in VARIABLES
        if values.get(name)
    }
    return named | past_proxies(os.environ)
