"""The file of a backup: a tar of stack.json, the database and the files, with a manifest of their
hashes first.

Tested by tests/local/test_backup.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import time
from pathlib import Path
from typing import Any

from transformer_serving.contract.full_disk import is_full_disk
from transformer_serving.contract.gate.release import kit_version
from transformer_serving.contract.replacement import replacing
from transformer_serving.control_plane import integrity
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import StackRecord, load_record

_MANIFEST, RECORD = "backup.json", "stack.json"
_FORMAT = 1


def manifest_of(moment: Path) -> dict[str, Any]:
    names = sorted(str(path.relative_to(moment)) for path in moment.rglob("*") if path.is_file())
    return {
        "format": _FORMAT,
        "kit": kit_version(),
        "schema": integrity.SCHEMA,
        "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "sha256": {name: _hash(moment / name) for name in names},
    }


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def place_of(target: Path) -> Path:
    """Where the file is put. Raises Failure (2) for a pipe or a device: it would be replaced.

    A link of this user's leads to it; in a shared folder another's might lead anywhere, and is
    replaced.
    """
    if target.exists() and not target.is_file():
        raise Failure(
            f"{target} is no regular file, and a backup is put in place of what it names; write "
            "to a file and copy that",
            exit_code=2,
        )
    follows = target.is_symlink() and target.lstat().st_uid == os.getuid()
    return target.resolve() if follows else target


def write(moment: Path, manifest: dict[str, Any], target: Path) -> None:
    """Replaces the target at once; only its owner may read it, for it holds the stack's keys."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, durable=True) as new:
        new.touch(0o600, exist_ok=False)
        with tarfile.open(new, mode="w", format=tarfile.PAX_FORMAT) as archive:
            text = json.dumps(manifest, indent=1).encode()
            head = tarfile.TarInfo(_MANIFEST)
            head.size = len(text)
            archive.addfile(head, io.BytesIO(text))
            for path in manifest["sha256"]:
                archive.add(moment / path, path)


def unpack(source: Path, new: Path) -> StackRecord:
    """The files of a backup, each checked against the manifest, and the record in it."""
    hashes = _extract(source, new)
    for name, wanted in hashes.items():
        if not (new / name).is_file() or _hash(new / name) != wanted:
            raise Failure(f"{source} is damaged: {name} in it is not what was backed up")
    record = load_record(new)
    if record is None or integrity.DATABASE not in hashes:
        raise Failure(f"{source} is not a whole backup")
    for name in (_MANIFEST, RECORD):
        (new / name).unlink()
    return record


def _extract(source: Path, new: Path) -> dict[str, str]:
    """The hashes of the files, by their names. Raises OSError for a full disk."""
    try:
        with tarfile.open(source, "r:") as archive:
            _extract_inside(archive, new)
        kit, form, hashes = _contents((new / _MANIFEST).read_text("utf-8"))
    except FileNotFoundError as error:
        raise Failure(f"there is no {source}, or it is no backup", exit_code=2) from error
    except OSError as error:
        if is_full_disk(error):
            raise
        raise Failure(f"{source} cannot be unpacked: {error.strerror or error}") from error
    except (tarfile.TarError, ValueError) as error:
        raise Failure(f"{source} is not a whole backup ({type(error).__name__})") from error
    if form > _FORMAT:
        raise Failure(f"{source} was made by a newer kit ({kit}); install that one")
    return hashes


def _extract_inside(archive: tarfile.TarFile, folder: Path) -> None:
    """All of it as tarfile's filter `data` does, which Python has from 3.11.4 on. Raises TarError
    for what would lie elsewhere."""
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, filter="data")
        return
    members = archive.getmembers()
    for member in members:
        named = [member.name, member.linkname] if member.islnk() else [member.name]
        inside = not any(name.startswith("/") or ".." in Path(name).parts for name in named)
        if not inside or not (member.isreg() or member.isdir() or member.islnk()):
            raise tarfile.ExtractError("what is no file inside the folder")
        # Root's own, whoever made the backup.
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        member.mode = member.mode & 0o755 | 0o600
    archive.extractall(folder, members)


def _contents(manifest: str) -> tuple[str, int, dict[str, str]]:
    """The kit that made a backup, its format and its hashes. Raises ValueError for no manifest."""
    try:
        read = json.loads(manifest)
        return str(read.get("kit")), int(read["format"]), dict(read["sha256"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("no manifest of a backup") from error
