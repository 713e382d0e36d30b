"""The ClearML server that an --env-file gives to containers, as this machine reaches it.

Tested by tests/doctor/test_env_file.py.
"""

from __future__ import annotations

from pathlib import Path

from transformer_serving.desk.compose.variables import CLEARML
from transformer_serving.desk.doctor.clearml import API, MACHINE
from transformer_serving.desk.env_file import read_env_file
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import LOOPBACK


def server_variables(env_file: Path) -> dict[str, str]:
    """Its CLEARML_* variables that are not empty. Raises Failure where none names the API."""
    values = read_env_file(env_file)
    if not values.get(API):
        raise Failure(
            f"--env-file {env_file}: {API} is empty: put the ClearML server's address there; for "
            "that of --profile local its own container prints the variables (docs/compose.md)",
            exit_code=2,
        )
    return {
        row.name: values[row.name].replace(f"//{MACHINE}", f"//{LOOPBACK}")
        for row in CLEARML.variables
        if values.get(row.name)
    }
