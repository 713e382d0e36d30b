"""The command line `transformer-serving`, whose Ctrl-C is also heard while it loads.

An installed script calls `main` of this module, also after another commit was checked out: its name
stays.

Tested by tests/cli/test_program.py.
"""

from __future__ import annotations

import sys

from transformer_serving.desk.interruption import reraise_interruption

# As where click listens already: its word, and 1.
try:
    try:
        from transformer_serving.desk.cli.commands import Commands, main
    except ImportError as error:
        reraise_interruption(error)
        raise
except KeyboardInterrupt:
    sys.exit("Aborted!")

__all__ = ["Commands", "main"]
