"""One at a time, among threads and processes of several machines: a lock on a file.

The kernel lets go of it when its holder ends, and who held it deletes the file. A volume may know
no locks, and a holder on another machine may hang: who waits then does without.

Tested by tests/engine/test_turn.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# Of a holder under whose hands nothing changes: its longest quiet work is to copy a model.
PATIENCE_S = 600.0
_LOOK_S = 0.5
# Far more than wait at one time; a volume may number a file anew whenever it is asked.
_MOST_DELETED = 100


@contextlib.contextmanager
def turn(lock: Path, work: Path, patience_s: float = PATIENCE_S) -> Iterator[bool]:
    """Whether it is ours; waits for as long as something changes below the folder `work`."""
    file = _locked_file(lock, work, patience_s)
    if file is None:
        yield False
        return
    with file:
        try:
            yield True
        finally:
            # Else one stays of all that anybody ever fetched.
            with contextlib.suppress(OSError):
                lock.unlink()


def _locked_file(lock: Path, work: Path, patience_s: float) -> BinaryIO | None:
    """The file that is there, locked; None where it cannot be had."""
    for _ in range(_MOST_DELETED):
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = lock.open("ab")
        except OSError:
            return None
        ours = _locked(file.fileno(), work, patience_s)
        if ours and _is_at(lock, file.fileno()):
            return file
        file.close()
        if not ours:
            return None
        # Its holder deleted it meanwhile, and others lock the one that is there by now.
    return None


def _is_at(lock: Path, descriptor: int) -> bool:
    """Whether the file is still the one of that name."""
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except OSError:
        return False


def _locked(descriptor: int, work: Path, patience_s: float) -> bool:
    seen, since = _look(work), time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return False
        if (now := _look(work)) != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > patience_s:
            return False
        time.sleep(_LOOK_S)


def _look(work: Path) -> list[tuple[str, int, int]]:
    """What lies there, its sizes and times; it comes and goes meanwhile."""
    found = []
    for folder, folders, files in os.walk(work):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                status = os.stat(path)
                found.append((path, status.st_size, status.st_mtime_ns))
    return sorted(found)
