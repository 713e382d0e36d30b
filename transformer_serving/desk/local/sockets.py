"""The folder of a stack's sockets: short, because a socket's path has 107 bytes at most.

Tested by tests/local/test_record.py and tests/local/test_supervision.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import tempfile
from pathlib import Path

from transformer_serving.desk.failure import Failure

# Where a stack keeps what `up` decided, the folder of its sockets among it.
RECORD = "stack.json"
_PREFIX = "transformer-serving-"
# Without characters that mean something in an address, or in a list of them.
_PLAIN = re.compile(r"[\w./-]{1,90}", re.ASCII)


def socket_folder(state: Path) -> Path:
    """The folder, which only this user can enter. Raises Failure where that cannot be had."""
    folder = Path(tempfile.gettempdir()) / _name(state)
    if not _PLAIN.fullmatch(str(folder)):
        raise Failure(
            f"{folder} cannot hold sockets: at most 90 of letters, digits and ./_-; set TMPDIR "
            "to another folder",
            exit_code=2,
        )
    make_private(folder)
    return folder


def make_private(folder: Path) -> None:
    """Where it is not there. Raises Failure where others can enter the one that is."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _private(folder):
        raise Failure(f"{folder} belongs to somebody else; remove it or set TMPDIR")


def sockets_of(state: Path) -> Path:
    """Where the stack that runs has its sockets: as stack.json says, whatever TMPDIR is today."""
    stored = stored_sockets(state)
    # The stack.json of a copied folder names those of the stack that it was copied from.
    return stored if stored and is_folder_of(state, stored) else socket_folder(state)


def stored_sockets(state: Path) -> Path | None:
    """As stack.json has it; None where that cannot be read."""
    try:
        return Path(json.loads((state / RECORD).read_text("utf-8"))["sockets"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def is_of_this_user(folder: Path | None) -> bool:
    """By its name alone; it may be gone."""
    return folder is not None and folder.name.startswith(f"{_PREFIX}{os.getuid()}-")


def is_folder_of(state: Path, folder: Path) -> bool:
    """Whether that is one of this state's, made where TMPDIR was then; it may be gone."""
    try:
        return folder.name == _name(state) and _private(folder)
    except FileNotFoundError:
        return True


def remove_sockets_of(state: Path, folder: Path) -> None:
    """After the stack is down: the folder, where it is this state's own and nothing is in it."""
    with contextlib.suppress(OSError):
        if is_folder_of(state, folder):
            folder.rmdir()


def _name(state: Path) -> str:
    digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
    return f"{_PREFIX}{os.getuid()}-{digest}"


def _private(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077 and found.st_uid == os.getuid()
