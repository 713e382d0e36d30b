"""A hidden folder to work in beside what is made: who ends takes it away, and the next command that
of one who was killed.

Tested by tests/test_scratch.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from transformer_serving.desk.file_lock import taken

# It appears in a folder as a lock that is held already: one that nobody holds was a killed one's.
_LOCK = ".owner-lives"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@contextmanager
def scratch_beside(target: Path, prefix: str) -> Iterator[Path]:
    """A folder on the disk of `target`, so that moving files there costs nothing; it goes with the
    block."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_left(target.parent, prefix)
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as name,
        # Without a buffer: what a full disk has not taken would be tried again at the end.
        (Path(name) / f"{_LOCK}.new").open("wb", buffering=0) as lock,
    ):
        _hold(lock)
        yield Path(name)


def _hold(lock: FileIO) -> None:
    """Without a lock, as on a disk that has none, the folder of who is killed stays."""
    try:
        lock.write(_BOOT.read_bytes())
        if taken(lock):
            new = Path(os.fsdecode(lock.name))
            os.rename(new, new.with_name(_LOCK))
    except OSError:
        return


def _remove_left(place: Path, prefix: str) -> None:
    for folder in place.glob(f"{prefix}*"):
        try:
            own = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            with (folder / _LOCK).open() as lock:
                # Of another machine's, on a disk that both have, nobody here knows the lock.
                gone = own and lock.read() == _BOOT.read_text() and taken(lock)
                if gone:
                    shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
