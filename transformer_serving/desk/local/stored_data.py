"""The control plane's data on its disk: a copy of one moment of it, and when it may be replaced.

It is the same in the embedded stack and in a container.

Tested by tests/local/test_backup.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

from transformer_serving.contract.full_disk import is_full_disk
from transformer_serving.contract.replacement import sync
from transformer_serving.control_plane import integrity
from transformer_serving.control_plane.half_restored import discard_half_restored
from transformer_serving.desk.failure import Failure, no_space

FILES = "files"
NO_BACKUP, NOT_RESTORED = "no backup was written", "nothing was restored"
_LOCK_S = 60.0


@contextlib.contextmanager
def moment(data: Path) -> Iterator[Path]:
    """A folder with the database and the files as they are now, also while they are served.

    The database's write lock is held while the files are linked, and a view of that moment is kept
    open from which its pages are copied after that; so both are of one moment. Raises Failure where
    there is nothing to back up, or no room.
    """
    why = integrity.fault(data) or integrity.noted(data)
    if why is None and not (data / integrity.DATABASE).exists():
        # SQLite would make an empty one, and its backup would be taken for a whole one.
        why = f"{data} has no database"
    if why is not None:
        raise Failure(f"nothing to back up: {why}")
    # Beside the files: links need the same file system.
    with told(data, NO_BACKUP), tempfile.TemporaryDirectory(prefix="backup-", dir=data) as name:
        _copy(data, Path(name))
        yield Path(name)


@contextlib.contextmanager
def told(folder: Path, after: str) -> Iterator[None]:
    """What the disk of `folder` did not do, as a Failure; `after` is how things are then."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        if is_full_disk(error):
            why = no_space(folder)
        else:
            why = f"{folder} cannot be used: {getattr(error, 'strerror', None) or error}"
        raise Failure(f"{why}; {after}") from error


def _copy(data: Path, moment: Path) -> None:
    database = data / integrity.DATABASE
    with closing(sqlite3.connect(database, isolation_level=None)) as view:
        with closing(sqlite3.connect(database, timeout=_LOCK_S, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            try:
                view.execute("BEGIN")
                # A view begins with the first page that it reads.
                view.execute("SELECT count(*) FROM sqlite_master").fetchone()
                _link(data / FILES, moment / FILES)
            finally:
                writer.execute("ROLLBACK")
        with closing(sqlite3.connect(moment / integrity.DATABASE)) as copy:
            view.backup(copy)
            # Without the pages of what was deleted, where there is room to write them anew.
            with suppress(sqlite3.OperationalError):
                copy.execute("VACUUM")


def _link(source: Path, target: Path) -> None:
    """Files are never changed in place, so a link keeps one as it is; new ones replace the name.

    What is no regular file somebody put there by hand: the store gives it to nobody, and `restore`
    would refuse a backup that holds it.
    """
    target.mkdir(parents=True)
    for folder, _, names in os.walk(source):
        inside = target / Path(folder).relative_to(source)
        inside.mkdir(exist_ok=True)
        for name in names:
            # One that was deleted meanwhile is named by nobody.
            with contextlib.suppress(FileNotFoundError):
                one = Path(folder, name)
                if stat.S_ISREG(one.lstat().st_mode):
                    os.link(one, inside / name, follow_symlinks=False)


def sync_all(folder: Path) -> None:
    """What is exchanged away next was on the disk: so must be all that takes its place."""
    for inside, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(inside, name))
        sync(Path(inside))


@contextlib.contextmanager
def nobody_serves(data: Path, stop: str) -> Iterator[None]:
    """Holds the control plane's own lock, so that none starts meanwhile; `stop` ends one.

    What a restore has left that was killed is gone then. A folder that was not there is gone again
    where the block raises and has left nothing in it.
    """
    made = [folder for folder in (data, *data.parents) if not folder.exists()]
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (data / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Failure(f"the control plane runs; stop it first: {stop}", exit_code=2) from error
        discard_half_restored(data)
        try:
            yield
        except BaseException:
            _take_away(made)
            raise


def _take_away(made: Sequence[Path]) -> None:
    """Folders that hold nothing but each other, and the lock in the first one."""
    with suppress(OSError):
        if made and [path.name for path in made[0].iterdir()] == ["lock"]:
            (made[0] / "lock").unlink()
        for folder in made:
            folder.rmdir()
