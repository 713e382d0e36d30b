"""`python -m transformer_serving.local.run_part NAME STATE`: become one part of the stack.

The supervisor starts every part this way, so that its own file stays the same over restarts and
the part always reads the ports and keys of now.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from transformer_serving.local.parts import BY_NAME
from transformer_serving.local.record import require_record

# `down` finds what a crash left behind by this variable.
MARK = "TRANSFORMER_SERVING_PART_OF"


def main(arguments: list[str]) -> None:
    name, state = arguments
    folder = Path(state)
    launch = BY_NAME[name].launch(folder, require_record(folder))
    environment = {**os.environ, **launch.environment, MARK: state}
    os.execvpe(launch.command[0], launch.command, environment)


if __name__ == "__main__":
    main(sys.argv[1:])
