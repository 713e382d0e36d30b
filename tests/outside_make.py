"""The environment of a process that is to be no part of the `make` that runs the tests."""

from __future__ import annotations

import os

# Of the Makefile. What its command line sets, make exports to all that it starts.
_VARIABLES = {"PYTEST", "PROCESSES", "PYTHON", "VENV"}


def outside_make() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if "MAKE" not in name and name not in _VARIABLES
    }
