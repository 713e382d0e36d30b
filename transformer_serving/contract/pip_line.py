"""A line of pip as messages give it: typed as it stands, it is about the Python that gives it.

Tested by tests/cli/test_command_line.py.
"""

from __future__ import annotations

import shlex
import sys


def pip_line(words: str) -> str:
    """`words` behind `pip install`, which alone would be another Python's where the environment is
    not active."""
    return f"{shlex.quote(sys.executable)} -m pip install {words}"
