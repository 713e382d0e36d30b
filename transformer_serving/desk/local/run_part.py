"""`python -m transformer_serving.desk.local.run_part NAME`: become one part of the stack that the
environment marks.

The supervisor starts every part this way, so that its own file stays the same over restarts and
the part always reads the ports and keys of now.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.local.parts import BY_NAME, Part
from transformer_serving.desk.local.record import StackRecord, require_record

_WAIT_S = 30.0


def main(arguments: list[str]) -> None:
    (name,) = arguments
    # Not an argument: supervisord reads a command as a shell does, and a folder may have any name.
    folder = Path(os.environ[MARK])
    record = require_record(folder)
    for needed in BY_NAME[name].needs:
        wait_for(BY_NAME[needed], record)
    launch = BY_NAME[name].launch(folder, record)
    environment = {**launch.run_in(os.environ), MARK: str(folder)}
    os.execvpe(launch.command[0], launch.command, environment)


def wait_for(part: Part, record: StackRecord) -> None:
    """Return once the part answers; leave with an error after a bounded wait."""
    # Of no use to the parts that wait for none.
    from transformer_serving.desk.local.health import probe

    address, path = part.listens(record) or "", part.health or ""
    deadline = time.monotonic() + _WAIT_S
    while probe(address, path) == "does not answer":
        if time.monotonic() > deadline:
            sys.exit(f"error: {part.name} did not answer at {address} within {_WAIT_S:.0f} s")
        time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1:])
