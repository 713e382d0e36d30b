"""The files of a registered bundle, out of the archive that ClearML keeps them in.

Who may write to the registry or to its store may exchange the archive, and one of 300 kB unpacks to
300 MB. So its manifest comes first, and its signature where keys are trusted, then what it lists.

Tested by tests/deploy/test_registered_files.py.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

from transformer_serving.contract.manifest import FILE_NAME, SIGNATURE_NAME
from transformer_serving.contract.naming import BUNDLE_FOLDER
from transformer_serving.desk.bundle.folder import open_listing

# Those two have no size in any list.
_UNLISTED = (f"model/{FILE_NAME}", f"model/{SIGNATURE_NAME}")
_MOST_UNLISTED = 1 << 24
_BLOCK = 1 << 20


def unpack_registered(archive: Path, folder: Path) -> None:
    """The archive's files as a bundle in `folder`, which is made: no byte more than its manifest
    lists.

    Raises Failure (exit code 2) for a manifest that cannot be read or that no trusted key signed,
    and of DAMAGED_ARCHIVE for an archive that holds anything else than it lists. What it lacks is
    missing in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive) as packed:
        members = {_path(row.filename): row for row in packed.infolist() if not row.is_dir()}
        for path in _UNLISTED:
            if path in members:
                _write(packed, _short(members.pop(path)), folder / path)
        sizes = {entry.path: entry.size for entry in open_listing(folder).files}
        if any(row.file_size != sizes.get(path) for path, row in members.items()):
            raise zipfile.BadZipFile("it holds other files, or sizes, than its manifest lists")
        for path, member in members.items():
            _write(packed, member, folder / path)


def _short(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """Raises BadZipFile for one that is too large to be what it is called."""
    if member.file_size > _MOST_UNLISTED:
        raise zipfile.BadZipFile(
            f"its {member.filename} has {member.file_size} bytes, at most {_MOST_UNLISTED} are read"
        )
    return member


def _path(name: str) -> str:
    """Of a bundle, where the archive has its model's folder with the other files inside."""
    inside = f"{BUNDLE_FOLDER}/"
    return name.removeprefix(inside) if name.startswith(inside) else f"model/{name}"


def _write(packed: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path) -> None:
    """No more than the size that was looked at, whatever the archive has after it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with packed.open(member) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _BLOCK)
