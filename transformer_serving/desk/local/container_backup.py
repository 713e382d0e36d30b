"""`backup` and `restore` of the control plane in a container: a backup's file through a pipe.

There data and keys are volumes of their own, so that no folder can be exchanged with another: what
was there is moved within its volume, and nothing is served meanwhile, also after a crash. The file
is that of an embedded stack.

Tested by tests/control_plane/test_container_backup.py.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from transformer_serving.contract.replacement import sync
from transformer_serving.control_plane import integrity
from transformer_serving.control_plane.half_restored import RESTORING
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import undisturbed
from transformer_serving.desk.local import backup_file
from transformer_serving.desk.local.record import Ports, StackRecord, record_text, write_private
from transformer_serving.desk.local.stored_data import (
    FILES,
    NOT_RESTORED,
    moment,
    nobody_serves,
    sync_all,
    told,
)

ACCESS_KEY, SECRET_KEY, SERVING_ID = "access-key", "secret-key", "serving-id"
_HALF = "a restore was ended half way, and nothing is served until one has ended. Fix: "


@dataclass(frozen=True)
class Volumes:
    """The database with its files, and what the other containers read: keys and the service's id.

    `given` are keys that came as variables: the volume does without them.
    """

    data: Path
    shared: Path
    given: Mapping[str, str]

    def text(self, name: str) -> str | None:
        if name in self.given:
            return self.given[name]
        with suppress(FileNotFoundError):
            return (self.shared / name).read_text("utf-8").strip()
        return None


def backup(volumes: Volumes, stream: IO[bytes]) -> int:
    """Write the backup, also while the control plane serves. Returns how many files it holds.

    Raises Failure where there is nothing to back up, no room, or nobody who reads it.
    """
    access, secret = volumes.text(ACCESS_KEY), volumes.text(SECRET_KEY)
    if access is None or secret is None:
        raise Failure("nothing to back up: this control plane has not been started yet")
    record = StackRecord(Ports(), access, secret, volumes.text(SERVING_ID))
    with moment(volumes.data) as found:
        (found / backup_file.RECORD).write_text(record_text(record), "utf-8")
        manifest = backup_file.manifest_of(found)
        try:
            backup_file.pour(found, manifest, stream)
        except BrokenPipeError as error:
            raise Failure(
                "nobody reads the backup any more: what was written is not whole"
            ) from error
    return len(manifest["sha256"])


def restore(volumes: Volumes, stream: IO[bytes]) -> Path:
    """Put a backup in place of the data; the folder, in the same volume, that keeps what was there.

    Keys that are there stay, as the other containers have them; the service's id is the backup's.
    Raises Failure where it serves, or what is read is no whole backup that this kit can serve, or
    there is no room: what is there is then as it was.
    """
    data = volumes.data
    kept = data / f"before-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    with (
        told(data, NOT_RESTORED),
        nobody_serves(data, integrity.to_stop()),
        tempfile.TemporaryDirectory(prefix=RESTORING, dir=data) as name,
    ):
        new = Path(name)
        stored = backup_file.unpack(stream, new)
        why = integrity.fault(new)
        if why is not None:
            raise Failure(f"{backup_file.name_of(stream)} cannot be restored: {why}")
        (new / FILES).mkdir(exist_ok=True)
        sync_all(new)
        with undisturbed(), _half_way(data), _keys_put(volumes, stored) as before:
            _take_place(data, new, kept, before.get(SERVING_ID))
    return kept


@contextmanager
def _half_way(data: Path) -> Iterator[None]:
    """Until the block ends nothing is served: a database that is missing would be begun anew.

    The note stays where the block has failed and the database is not where it was, too.
    """
    note, database = integrity.note_of(data), data / integrity.DATABASE
    before = note.read_text("utf-8") if note.exists() else None
    was_there = database.exists()
    write_private(note, f"{data}: {_HALF}{integrity.fix(data)}")
    sync(data)
    try:
        yield
    except BaseException:
        if before is not None:
            write_private(note, before)
        elif database.exists() == was_there:
            note.unlink()
        raise
    sync(data)
    # Also that of the damage which is restored from: it has gone with its database.
    note.unlink()


def _take_place(data: Path, new: Path, kept: Path, serving_id: str | None) -> None:
    """By names alone, which no disk that is full keeps from changing; back where one fails.

    `serving_id` is that of the data that were there, and is kept with them.
    """
    kept.mkdir(mode=0o700)
    moves = [(path, kept / path.name) for path in _of_data(data)]
    moves += [(path, data / path.name) for path in _of_data(new)]
    done: list[tuple[Path, Path]] = []
    try:
        if serving_id is not None:
            write_private(kept / SERVING_ID, serving_id)
        for source, target in moves:
            source.rename(target)
            done.append((source, target))
    except OSError:
        for source, target in reversed(done):
            target.rename(source)
        (kept / SERVING_ID).unlink(missing_ok=True)
        kept.rmdir()
        raise


def _of_data(folder: Path) -> list[Path]:
    """The database, what SQLite has beside it, and the files; not the note that stands there."""
    note = integrity.note_of(folder)
    return [
        path
        for path in folder.iterdir()
        if path.name == FILES or (path.name.startswith(integrity.DATABASE) and path != note)
    ]


@contextmanager
def _keys_put(volumes: Volumes, stored: StackRecord) -> Iterator[dict[str, str]]:
    """What the other containers read is as the backup has it; as it was, where the block fails.

    Yields what was there. Keys of a new volume are the backup's, as its callers know them.
    """
    names = (ACCESS_KEY, SECRET_KEY, SERVING_ID)
    files = [volumes.shared / name for name in names]
    before = {file.name: file.read_text("utf-8") for file in files if file.exists()}
    wanted = {SERVING_ID: stored.serving_id}
    for name, value in ((ACCESS_KEY, stored.access_key), (SECRET_KEY, stored.secret_key)):
        if volumes.text(name) is None:
            wanted[name] = value
    try:
        for name, text in wanted.items():
            _put(volumes.shared / name, None if text is None else text + "\n")
        yield before
    except BaseException:
        for name in wanted:
            _put(volumes.shared / name, before.get(name))
        raise


def _put(file: Path, text: str | None) -> None:
    if text is None:
        file.unlink(missing_ok=True)
    else:
        write_private(file, text)
