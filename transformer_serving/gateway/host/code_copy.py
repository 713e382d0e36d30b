"""A copy of an endpoint's code, from ClearML's storage through the SDK's cache.

A folder comes packed, and is unpacked here: the SDK follows links that lead out of its own, and
bounds nothing. With trusted keys nothing is unpacked: what is signed is one file.

Tested by tests/gateway/test_code_files.py.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from transformer_serving.contract.archives import ArchiveFault, is_archive, unpack
from transformer_serving.contract.identity import MAX_DATA_BYTES

# A folder that comes into the SDK's cache, or goes.
_ASIDE = "unpacking-"


class CodeCopyError(Exception):
    """There is no copy; the text says why."""


class CodeRefusedError(CodeCopyError):
    """What was uploaded came, and is not unpacked; nor would it be if it came again."""


class CodeCopy(NamedTuple):
    """On this machine: the file as it was uploaded, and the folder that it packs, or itself."""

    file: str
    content: str

    @property
    def is_there(self) -> bool:
        """The SDK's cache keeps a number of files, and takes out the oldest."""
        return Path(self.file).exists() and Path(self.content).exists()


class TaskWithCopy:
    """As much of a ClearML task as the host asks for: an artifact that has its local copy already.

    The host asks for that again, and by force, where it is another upload's.
    """

    def __init__(self, name: str, artifact_hash: str, copy: CodeCopy) -> None:
        self.artifacts = {name: _Copied(artifact_hash, copy)}


class _Copied(NamedTuple):
    hash: str
    copy: CodeCopy

    def get_local_copy(self, extract_archive: bool = True, **_: Any) -> str:
        return self.copy.content if extract_archive else self.copy.file


def fetched(artifact: Any, *, unpacks: bool) -> CodeCopy:
    """As the host does it, and fetched anew where what the cache has is another upload's.

    Raises CodeCopyError, and what the SDK does.
    """
    file = local_file(artifact)
    content = _hash_of(file)
    if content != artifact.hash:
        file = local_file(artifact, force_download=True)
        content = _hash_of(file)
    if unpacks and content and artifact.type == "archive" and is_archive(file.name):
        try:
            return CodeCopy(str(file), str(_unpacked(file, content)))
        except ArchiveFault as fault:
            failure = CodeRefusedError if content == artifact.hash else CodeCopyError
            raise failure(f"its archive is not unpacked: {fault}") from None
    return CodeCopy(str(file), str(file))


def discard(paths: Iterable[str]) -> None:
    """Take copies out of the SDK's cache. A store that is a folder of this machine gives its own
    files, which stay.
    """
    cache = _cache()
    for path in map(Path, paths):
        # What is not taken out now the cache does, once it has its number of files.
        with contextlib.suppress(OSError):
            if path.parent == cache and path.is_dir():
                # At once: another worker would take a part of it for the whole.
                with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=cache) as aside:
                    path.rename(Path(aside) / "folder")
            elif path.parent == cache:
                path.unlink()


def local_file(artifact: Any, *, force_download: bool = False) -> Path:
    """As it was uploaded. Raises CodeCopyError for none, and what the SDK does."""
    file = artifact.get_local_copy(extract_archive=False, force_download=force_download)
    if not file:
        # The SDK has told its own log why.
        raise CodeCopyError("no copy came")
    return Path(file)


def _hash_of(file: Path) -> str | None:
    """None where it cannot be read."""
    from clearml.binding.artifacts import Artifacts

    # As the host imports it.
    from clearml.storage.util import sha256sum  # type: ignore[attr-defined]

    found: str | None = sha256sum(str(file), block_size=Artifacts._hash_block_size)[0]
    return found


def _unpacked(file: Path, content: str) -> Path:
    """The folder that it packs, in the SDK's cache: named by its content, so that it is never
    another upload's, and one for all workers."""
    cache = _cache()
    place = cache / f"unpacked-{content}"
    try:
        if not place.is_dir():
            _unpack_into(place, file)
        # The cache takes out the oldest. No `touch`, which would put a file where another worker
        # has just discarded the folder.
        os.utime(place)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise CodeCopyError(f"its archive cannot be unpacked into {cache} ({why})") from None
    return place


def _cache() -> Path:
    """The folder of the SDK's cache."""
    from clearml.storage.cache import CacheManager

    return Path(CacheManager.get_cache_manager().get_cache_folder())


def _unpack_into(place: Path, file: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=place.parent) as aside:
        folder = Path(aside) / "folder"
        # As much as a preprocess.py may carry.
        unpack(file, folder, MAX_DATA_BYTES)
        try:
            folder.rename(place)
        except OSError:
            # Another worker may have been first.
            if not place.is_dir():
                raise
