"""A line of the command line about an embedded stack, as its parts and its data tell it.

They do not know in which folder it will be typed, so the stack is always named.

Tested by tests/contract/test_stack_line.py.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

# Every process of a stack has this variable, its folder: `down` finds what a crash left behind by
# it.
MARK = "TRANSFORMER_SERVING_PART_OF"


def stack_line(words: str, state: Path | None = None) -> str:
    """`words` behind the program, and --state with the stack's folder.

    `state` None: that of which this process is a part; of a part of none, as in a container, the
    line names no stack.
    """
    folder = os.environ.get(MARK) if state is None else str(state.absolute())
    named = f" --state {shlex.quote(folder)}" if folder else ""
    return f"transformer-serving {words}{named}"
