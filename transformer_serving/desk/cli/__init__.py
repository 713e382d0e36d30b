"""The command line `transformer-serving`, whose Ctrl-C is also heard while it loads.

An installed script calls `main` of this module, also after another commit was checked out: its name
stays.

Tested by tests/cli/test_program.py.
"""

from __future__ import annotations

import os
import sys

from transformer_serving.desk.interruption import reraise_interruption

# Read once, when torch is imported: its threads sleep while they wait for each other. They would
# turn, and beside anything else on these cores for as long as that other has the core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

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
