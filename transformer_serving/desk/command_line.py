"""A line of this command line as messages give it: typed as it stands, it is about the same stack.

Tested by tests/cli/test_command_line.py.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

STATE_VARIABLE = "TRANSFORMER_SERVING_STATE"
DEFAULT_STATE = ".stack"
_PROGRAM = "transformer-serving"


def command_line(words: str, state: Path | None = None) -> str:
    """`words` behind the program, and --state where a bare line would find another folder.

    `state` None: the command has no stack, or whichever is found.
    """
    if state is None or os.path.realpath(state) == os.path.realpath(usual_state()):
        return f"{_program()} {words}"
    return f"{_program()} {words} --state {shlex.quote(str(state))}"


def usual_state() -> Path:
    """The folder of a stack that nobody names, as it is written."""
    return Path(os.environ.get(STATE_VARIABLE) or DEFAULT_STATE)


def _program() -> str:
    """As it was called, where its bare name is not found: in an environment that is not active."""
    called = sys.argv[0]
    if Path(called).name != _PROGRAM or shutil.which(_PROGRAM):
        return _PROGRAM
    return shlex.quote(called)
