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
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from transformer_serving.contract.full_disk import is_full_disk
from transformer_serving.contract.gate.release import kit_version
from transformer_serving.contract.replacement import replacing
from transformer_serving.control_plane import integrity
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.record import StackRecord, stored_record

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
            _add_all(archive, moment, manifest)


def pour(moment: Path, manifest: dict[str, Any], stream: IO[bytes]) -> None:
    """The same into a pipe. Raises OSError, as where nobody reads it any more."""
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        _add_all(archive, moment, manifest)
    stream.flush()


def _add_all(archive: tarfile.TarFile, moment: Path, manifest: dict[str, Any]) -> None:
    text = json.dumps(manifest, indent=1).encode()
    head = tarfile.TarInfo(_MANIFEST)
    head.size = len(text)
    archive.addfile(head, io.BytesIO(text))
    for path in manifest["sha256"]:
        archive.add(moment / path, path)


def unpack(source: Path | IO[bytes], new: Path) -> StackRecord:
    """The files of a backup, each checked against the manifest, and the record in it."""
    hashes, name = _extract(source, new), name_of(source)
    for file, wanted in hashes.items():
        if not (new / file).is_file() or _hash(new / file) != wanted:
            raise Failure(f"{name} is damaged: {file} in it is not what was backed up")
    record = stored_record(new)
    if record is None or integrity.DATABASE not in hashes:
        raise Failure(f"{name} is not a whole backup")
    for file in (_MANIFEST, RECORD):
        (new / file).unlink()
    return record


def name_of(source: Path | IO[bytes]) -> str:
    """What a message calls it."""
    return str(source) if isinstance(source, Path) else "what was read"


def _opened(source: Path | IO[bytes]) -> tarfile.TarFile:
    """A pipe is read once, from its begin to its end."""
    if isinstance(source, Path):
        return tarfile.open(source, "r:")
    return tarfile.open(fileobj=source, mode="r|")


def _extract(source: Path | IO[bytes], new: Path) -> dict[str, str]:
    """The hashes of the files, by their names. Raises OSError for a full disk."""
    name = name_of(source)
    try:
        with _opened(source) as archive:
            _extract_inside(archive, new)
        kit, form, hashes = _contents((new / _MANIFEST).read_text("utf-8"))
    except FileNotFoundError as error:
        raise Failure(f"there is no {name}, or it is no backup", exit_code=2) from error
    except OSError as error:
        if is_full_disk(error):
            raise
        raise Failure(f"{name} cannot be unpacked: {error.strerror or error}") from error
    except tarfile.ExtractError as error:
        raise Failure(f"{name} is not a whole backup: {error}") from error
    except (tarfile.TarError, ValueError) as error:
        raise Failure(f"{name} is not a whole backup ({type(error).__name__})") from error
    if form > _FORMAT:
        raise Failure(f"{name} was made by a newer kit ({kit}); install that one")
    return hashes


def _extract_inside(archive: tarfile.TarFile, folder: Path) -> None:
    """All of it, none of it elsewhere. Raises TarError for what would lie there.

    Not by tarfile's filter `data` alone, which Pythons before 3.11.4 have not, and which those
    before 3.11.13, 3.12.11 and 3.13.4 let a link of a very long path by.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(folder, _inside(archive), filter="data")
    else:
        archive.extractall(folder, _inside(archive))


def _inside(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Each as it comes, as a pipe cannot be read again.

    No symbolic link, so that every name is what it says. A hard link is one stored file's second
    name.
    """
    for member in archive:
        named = [member.name, member.linkname] if member.islnk() else [member.name]
        inside = not any(name.startswith("/") or ".." in Path(name).parts for name in named)
        if not inside or not (member.isreg() or member.isdir() or member.islnk()):
            raise tarfile.ExtractError(f"{member.name[:200]!r} in it is no file inside the folder")
        # Root's own, whoever made the backup.
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        member.mode = member.mode & 0o755 | 0o600
        yield member


def _contents(manifest: str) -> tuple[str, int, dict[str, str]]:
    """The kit that made a backup, its format and its hashes. Raises ValueError for no manifest."""
    try:
        read = json.loads(manifest)
        return str(read.get("kit")), int(read["format"]), dict(read["sha256"])
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("no manifest of a backup") from error
