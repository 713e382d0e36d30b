"""ClearML's own variables in the environment of whoever calls: for another server, as a rule.

A shell that works with a ClearML server of its own has them, and so has one that an agent of it
started. The stack's parts, and tools that are to reach one server, get what is said of that one.

Tested by tests/local/test_parts.py, tests/clearml_tools/test_cli.py and tests/local/test_record.py.
"""

from __future__ import annotations

from collections.abc import Mapping

# Those of before it was called ClearML are read as well.
_PREFIXES = ("CLEARML_", "TRAINS_")
# Settings of the inference app, by name as the control plane's image has no gateway; where the SDK
# may write, and has the keys of stores.
_KEPT = (
    "CLEARML_SERVING_NUM_PROCESS",
    "CLEARML_DEFAULT_KAFKA_SERVE_URL",
    "CLEARML_CONFIG_FILE",
    "TRAINS_CONFIG_FILE",
    "CLEARML_CACHE_DIR",
    "TRAINS_CACHE_DIR",
    "CLEARML_AZURE_STORAGE_USE_DEFAULT_CREDENTIAL",
)
# What the SDK goes by before it looks at the server's address and keys: a token or none at all, the
# task that it is run as, and a store in place of the file server.
_BEFORE_THE_SERVER = (
    "CLEARML_AUTH_TOKEN",
    "CLEARML_OFFLINE_MODE",
    "TRAINS_OFFLINE_MODE",
    "CLEARML_TASK_ID",
    "TRAINS_TASK_ID",
    "CLEARML_PROC_MASTER_ID",
    "TRAINS_PROC_MASTER_ID",
    "CLEARML_SIMULATE_REMOTE_TASK",
    "CLEARML_INFERENCE_TASK_ID",
    "CLEARML_SERVING_TASK_ID",
    "CLEARML_DEFAULT_OUTPUT_URI",
)


def without_clearml(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what is said in it of a ClearML server."""
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT or not name.startswith(_PREFIXES)
    }


def leading_elsewhere(environment: Mapping[str, str], server: Mapping[str, str]) -> list[str]:
    """Which variables of it keep ClearML's tools from the server that `server` names."""
    return [name for name in _BEFORE_THE_SERVER if name in environment and name not in server]
