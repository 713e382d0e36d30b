"""`backup` and `restore`: everything that the embedded control plane stores, in one file."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformer_serving.contract.replacement import replace_file, sync
from transformer_serving.control_plane import integrity
from transformer_serving.control_plane.half_restored import beside
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import undisturbed
from transformer_serving.desk.local import backup_file
from transformer_serving.desk.local.owner import check_owner
from transformer_serving.desk.local.parts import control_plane_data
from transformer_serving.desk.local.record import (
    StackRecord,
    load_record,
    record_text,
    require_record,
    save_record,
)
from transformer_serving.desk.local.sockets import socket_folder
from transformer_serving.desk.local.stored_data import (
    NO_BACKUP,
    NOT_RESTORED,
    moment,
    nobody_serves,
    sync_all,
    told,
)

# Who is told of alerts, with what opens their doors: made once, and changed by hand alone.
_YOURS = Path("monitoring", "alertmanager.yaml")
_EXCHANGE = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD = -100
# What a file system answers that has no exchange, or a kernel.
_CANNOT = (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP)


def backup(state: Path, target: Path) -> dict[str, Any]:
    """Write the backup, also while the stack serves. Returns what it holds.

    Raises Failure where there is nothing to back up, or no room: the target is then as it was.
    """
    record, place = require_record(state), backup_file.place_of(target)
    with moment(control_plane_data(state)) as found:
        (found / backup_file.RECORD).write_text(record_text(record), "utf-8")
        with suppress(FileNotFoundError):
            (found / _YOURS.name).write_bytes((state / _YOURS).read_bytes())
        manifest = backup_file.manifest_of(found)
        with told(place.parent, NO_BACKUP):
            backup_file.write(found, manifest, place)
    return {"file": str(target), "bytes": place.stat().st_size, "files": len(manifest["sha256"])}


def restore(state: Path, source: Path) -> dict[str, Any]:
    """Put a backup in place of what is there, which is kept beside it.

    Raises Failure where the stack runs or is somebody else's, the file is not a whole backup that
    this kit can serve, or there is no room: what is there is then as it was.
    """
    check_owner(state)
    data = control_plane_data(state)
    now = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    new, kept = beside(data, now), data.with_name(f"{data.name}.before-{now}")
    with (
        told(state, NOT_RESTORED),
        nobody_serves(data, command_line("down", state)),
        _or_as_it_was(data, new, kept),
    ):
        stored = backup_file.unpack(source, new)
        yours = _taken_out(new / _YOURS.name)
        why = integrity.fault(new)
        if why is not None:
            raise Failure(f"{source} cannot be restored: {why}")
        _keep_secret(data, new)
        sync_all(new)
        # Data of one stack beside the record of another would name a service that is not there.
        with undisturbed():
            # What was there gets its name by the exchange alone: what is named after a restore that
            # has not ended goes with the next one.
            new.rename(kept)
            _exchange(data, kept)
            sync(data.parent)
            _restore_record(state, stored)
    with told(state / _YOURS, f"all but {_YOURS} is restored"):
        _restore_yours(state / _YOURS, yours, kept)
    return {"file": str(source), "kept": str(kept)}


def _taken_out(file: Path) -> bytes | None:
    """What it held; None where a backup has no such file, as one of an older kit."""
    with suppress(FileNotFoundError):
        content = file.read_bytes()
        file.unlink()
        return content
    return None


def _restore_yours(place: Path, content: bytes | None, kept: Path) -> None:
    """What somebody has written is theirs, so what is there is kept, too."""
    if content is None:
        return
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        replace_file(kept / place.name, place.read_bytes(), mode=0o600)
    replace_file(place, content, mode=0o600, durable=True)


@contextlib.contextmanager
def _or_as_it_was(data: Path, new: Path, kept: Path) -> Iterator[None]:
    """Makes the folder `new`; where the block raises, it is gone, also by the name `kept`, and
    `data` is what it was.
    """
    new.mkdir(mode=0o700)
    made = new.lstat()
    try:
        yield
    except BaseException as ended:
        with undisturbed():
            _undo(data, (new, kept), made, ended)
        raise


def _undo(data: Path, names: tuple[Path, Path], made: os.stat_result, ended: BaseException) -> None:
    """By what the names stand for: nobody knows on which side of the exchange the block ended.

    Raises Failure where they cannot be exchanged again; nothing is removed then.
    """
    if os.path.samestat(data.lstat(), made):
        kept = names[1]
        try:
            _exchange(data, kept)
        except Failure as fault:
            raise Failure(
                f"{str(ended) or 'it was ended'}; {fault}; {data} holds the backup now, and what "
                f"was there before is in {kept}: rename both by hand"
            ) from ended
    for name in names:
        if name.exists() and os.path.samestat(name.lstat(), made):
            shutil.rmtree(name)


def _keep_secret(data: Path, new: Path) -> None:
    """Tokens of before stay as good as they were."""
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(data / "token.secret", new / "token.secret")


def _exchange(data: Path, new: Path) -> None:
    """Both folders change names in one step."""
    result = ctypes.CDLL(None, use_errno=True).renameat2(
        _AT_FDCWD, os.fsencode(data), _AT_FDCWD, os.fsencode(new), _EXCHANGE
    )
    if result == 0:
        return
    code = ctypes.get_errno()
    # Two renames would leave no data between them, which a control plane begins anew.
    on = (
        "; its file system cannot exchange two folders, as NFS cannot: restore with --state into a "
        "folder on another one, such as ext4 or xfs"
        if code in _CANNOT
        else ""
    )
    raise Failure(f"{data} cannot be exchanged: {os.strerror(code)}{on}")


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
