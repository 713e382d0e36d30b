"""The program `transformer-serving`: the command line, whose Ctrl-C is also heard while it loads.

Tested by tests/cli/test_program.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from transformer_serving.desk.interruption import reraise_interruption


def main() -> None:
    """Ends with 1 and click's own word where it is interrupted before click listens."""
    try:
        commands = _loaded()
    except KeyboardInterrupt:
        sys.exit("Aborted!")
    commands()


def _loaded() -> Callable[[], None]:
    try:
        from transformer_serving.desk.cli import main as commands
    except ImportError as error:
        reraise_interruption(error)
        raise
    return commands
