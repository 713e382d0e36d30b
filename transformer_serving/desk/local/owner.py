"""Whose a stack is: root may enter any folder, and would take one away from who has started it.

Tested by tests/local/test_record.py and tests/local/test_supervision.py.
"""

from __future__ import annotations

import os
import pwd
import shlex
from pathlib import Path

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.sockets import RECORD, is_of_this_user, stored_sockets


def check_owner(state: Path) -> None:
    """Raise Failure (exit code 2) where somebody else has started the stack of that folder.

    That is whose stack.json is: the folder itself may be a volume, whoever it was made by. There
    are volumes that show one owner for every file, so the record's own word counts as well.
    """
    try:
        owner = (state / RECORD).stat().st_uid
    except OSError:  # there is none, or none for this user, who hears it from who reads it
        return
    if owner == os.getuid() or is_of_this_user(stored_sockets(state)):
        return
    name = _name(owner)
    raise Failure(
        f"the stack in {state} belongs to {name}, and what {_name(os.getuid())} does there would "
        f"lock them out; run it as {name}: sudo -u {shlex.quote(name)} ...",
        exit_code=2,
    )


def _name(uid: int) -> str:
    """As sudo takes it, also without a name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"
