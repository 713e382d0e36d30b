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
    """`words` behind the program, and --state unless the folder is the default one.

    `state` None: the command has no stack, or whichever is found.
    """
    if state is None or _is_default(state):
        return f"{_program()} {words}"
    return f"{_program()} {words} --state {shlex.quote(str(state))}"


def usual_state() -> Path:
    """The folder of a stack that nobody names, as it is written."""
    return Path(os.environ.get(STATE_VARIABLE) or DEFAULT_STATE)


def _is_default(state: Path) -> bool:
    """A variable may have been set for this command alone: where there is one, the folder is
    named."""
    if os.environ.get(STATE_VARIABLE):
        return False
    try:
        return os.path.realpath(state) == os.path.realpath(DEFAULT_STATE)
    except OSError:  # the working folder is gone
        return False


def _program() -> str:
    """Its bare name, unless that would be another installation's or is not found: in an environment
    that is not active."""
    called, found = sys.argv[0], shutil.which(_PROGRAM)
    if Path(called).name != _PROGRAM or (found and _is_same(found, called)):
        return _PROGRAM
    return shlex.quote(called)


def _is_same(found: str, called: str) -> bool:
    try:
        return os.path.samefile(found, called)
    except OSError:  # the working folder is gone, and a name was relative
        return False
