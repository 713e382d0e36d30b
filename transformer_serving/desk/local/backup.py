"""`backup` and `restore`: everything that the embedded control plane stores, in one file."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer_serving.contract.full_disk import is_full_disk
from transformer_serving.contract.replacement import sync
from transformer_serving.control_plane import integrity
from transformer_serving.desk.failure import Failure, no_space
from transformer_serving.desk.interruption import undisturbed
from transformer_serving.desk.local import backup_file
from transformer_serving.desk.local.parts import control_plane_data
from transformer_serving.desk.local.record import (
    StackRecord,
    load_record,
    record_text,
    require_record,
    save_record,
)
from transformer_serving.desk.local.sockets import socket_folder

_FILES = "files"
_LOCK_S = 60.0
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD = -100


def backup(state: Path, target: Path) -> dict[str, Any]:
    """Write the backup, also while the stack serves. Returns what it holds.

    The database's write lock is held while the files are linked, and a view of that moment is kept
    open from which its pages are copied after that; so both are of one moment. Raises Failure where
    there is nothing to back up, or no room: the target is then as it was.
    """
    record, place = require_record(state), backup_file.place_of(target)
    data = control_plane_data(state)
    why = integrity.fault(data)
    if why is not None:
        raise Failure(f"nothing to back up: {why}")
    after = "no backup was written"
    # Beside the files: links need the same file system.
    with _told(data, after), tempfile.TemporaryDirectory(prefix="backup-", dir=data) as name:
        moment = Path(name)
        _moment(data, moment)
        (moment / backup_file.RECORD).write_text(record_text(record), "utf-8")
        manifest = backup_file.manifest_of(moment)
        with _told(place.parent, after):
            backup_file.write(moment, manifest, place)
    return {"file": str(target), "bytes": place.stat().st_size, "files": len(manifest["sha256"])}


def restore(state: Path, source: Path) -> dict[str, Any]:
    """Put a backup in place of what is there, which is kept beside it.

    Raises Failure where the stack runs, the file is not a whole backup that this kit can serve, or
    there is no room: what is there is then as it was.
    """
    data = control_plane_data(state)
    # What was there has this name in the end: the two are exchanged.
    new = data.with_name(f"{data.name}.before-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
    with (
        _told(state, "nothing was restored"),
        _nobody_serves(data),
        _or_as_it_was(data, new),
    ):
        stored = backup_file.unpack(source, new)
        why = integrity.fault(new)
        if why is not None:
            raise Failure(f"{source} cannot be restored: {why}")
        _keep_secret(data, new)
        _sync_all(new)
        # Data of one stack beside the record of another would name a service that is not there.
        with undisturbed():
            _exchange(data, new)
            sync(data.parent)
            _restore_record(state, stored)
    return {"file": str(source), "kept": str(new)}


@contextlib.contextmanager
def _or_as_it_was(data: Path, new: Path) -> Iterator[None]:
    """Makes the folder `new`; where the block raises, it is gone and `data` is what it was."""
    new.mkdir(mode=0o700)
    made = new.lstat()
    try:
        yield
    except BaseException as ended:
        with undisturbed():
            _undo(data, new, made, ended)
        raise


def _undo(data: Path, new: Path, made: os.stat_result, ended: BaseException) -> None:
    """By what the names stand for: nobody knows on which side of the exchange the block ended.

    Raises Failure where they cannot be exchanged again; nothing is removed then.
    """
    if os.path.samestat(data.lstat(), made):
        try:
            _exchange(data, new)
        except Failure as fault:
            raise Failure(
                f"{str(ended) or 'it was ended'}; {fault}; {data} holds the backup now, and what "
                f"was there before is in {new}: rename both by hand"
            ) from ended
    if os.path.samestat(new.lstat(), made):
        shutil.rmtree(new)


@contextlib.contextmanager
def _told(folder: Path, after: str) -> Iterator[None]:
    """What the disk of `folder` did not do, as a Failure; `after` is how things are then."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        if is_full_disk(error):
            why = no_space(folder)
        else:
            why = f"{folder} cannot be used: {getattr(error, 'strerror', None) or error}"
        raise Failure(f"{why}; {after}") from error


def _moment(data: Path, moment: Path) -> None:
    database = data / integrity.DATABASE
    with closing(sqlite3.connect(database, isolation_level=None)) as view:
        with closing(sqlite3.connect(database, timeout=_LOCK_S, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            try:
                view.execute("BEGIN")
                # A view begins with the first page that it reads.
                view.execute("SELECT count(*) FROM sqlite_master").fetchone()
                _link(data / _FILES, moment / _FILES)
            finally:
                writer.execute("ROLLBACK")
        with closing(sqlite3.connect(moment / integrity.DATABASE)) as copy:
            view.backup(copy)
            # Without the pages of what was deleted, where there is room to write them anew.
            with suppress(sqlite3.OperationalError):
                copy.execute("VACUUM")


def _link(source: Path, target: Path) -> None:
    """Files are never changed in place, so a link keeps one as it is; new ones replace the name."""
    target.mkdir(parents=True)
    for folder, _, names in os.walk(source):
        inside = target / Path(folder).relative_to(source)
        inside.mkdir(exist_ok=True)
        for name in names:
            # One that was deleted meanwhile is named by nobody.
            with contextlib.suppress(FileNotFoundError):
                os.link(Path(folder, name), inside / name, follow_symlinks=False)


def _sync_all(folder: Path) -> None:
    """What is exchanged away next was on the disk: so must be all that takes its place."""
    for inside, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync(Path(inside, name))
        sync(Path(inside))


@contextlib.contextmanager
def _nobody_serves(data: Path) -> Iterator[None]:
    """Holds the control plane's own lock, so that none starts meanwhile."""
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (data / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Failure(
                "the control plane runs; stop it first: transformer-serving down", exit_code=2
            ) from error
        yield


def _keep_secret(data: Path, new: Path) -> None:
    """Tokens of before stay as good as they were."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(data / "token.secret", new / "token.secret")


def _exchange(data: Path, new: Path) -> None:
    """Both folders change names in one step."""
    result = ctypes.CDLL(None, use_errno=True).renameat2(
        _AT_FDCWD, os.fsencode(data), _AT_FDCWD, os.fsencode(new), _EXCHANGE
    )
    if result != 0:
        raise Failure(f"{data} cannot be exchanged: {os.strerror(ctypes.get_errno())}")


def _restore_record(state: Path, stored: StackRecord) -> None:
    """The ports and keys of a stack that is there already stay."""
    present = _present(state)
    if present is None or stored.serving_id is None:
        # Those of the stack that was backed up may be in use by it.
        save_record(state, replace(stored, sockets=str(socket_folder(state))))
    else:
        save_record(state, present.with_serving_id(stored.serving_id))


def _present(state: Path) -> StackRecord | None:
    with contextlib.suppress(Failure):
        return load_record(state)
    return None
