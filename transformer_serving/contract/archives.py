"""Archives that anybody may have packed, unpacked without a file outside of the folder for them.

Zip and gzipped tar, of files and folders alone. A link, a device, a name that leads elsewhere or
stands there twice, what is encrypted or packed in a way that takes any memory: all of it is
refused, before anything is written. So is what takes more than it may, whatever the archive says of
itself. A hard link of a tar is what packers make of one file under two names, and comes as a copy.

Tested by tests/contract/test_archives.py.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NoReturn

from transformer_serving.contract.errors import ContractError

_ZIP, _TARS = ".zip", (".tgz", ".tar.gz")
_GZIP = b"\x1f\x8b"
# bzip2, xz, zstd and zip, by how each begins.
_PACKED_OTHERWISE = re.compile(rb"BZh[1-9]1AY&SY|\xfd7zXZ\x00|\x28\xb5\x2f\xfd|PK\x03\x04")
# The others' readers take as much memory as the archive asks for.
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Of a member of a zip; 0: whoever packed it said nothing.
_FILE_OR_FOLDER = (0, stat.S_IFREG, stat.S_IFDIR)
# Each becomes one file or folder, and one object in memory.
_MOST_ENTRIES = 100_000
# shutil.rmtree calls itself for each.
_DEEPEST = 64
# Both modules read what says what there is at once, as much as it says of itself: a zip's list of
# members, the head of one in a tar, which has tarfile search for squares of its length. As much as
# the list may have is kept of the names in either.
_LIST, _TAR_HEAD = 16 << 20, 16 << 10
# What all heads of a tar may have beside the files.
_HEADS = 256 << 20
# As a tar's files come by the same reads.
_CHUNK = _TAR_HEAD
_NAMED = 80
# Of a name, and not of the disk.
_NO_PLACE = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
# What the modules let through of an archive that is damaged, or made to be a trap.
_DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, struct.error),
    *(EOFError, RuntimeError, ValueError, ArithmeticError, LookupError),
)


class ArchiveFault(ContractError):
    """An archive that is not unpacked; the text goes on behind its name and a colon."""


class ArchiveDamaged(ArchiveFault):
    """It cannot be read to its end."""

    def __init__(self, text: str = "it is damaged, and to be uploaded again") -> None:
        super().__init__(text)


class ArchiveTooLarge(ArchiveFault):
    """Its files are more than the caller has room for."""


def is_archive(name: str) -> bool:
    """Whether ClearML's SDK would unpack a file of that name."""
    return name.lower().endswith((_ZIP, *_TARS))


def unpack(
    file: Path, folder: Path, most: int, fits: Callable[[int], object] = lambda _: None
) -> None:
    """Unpack into `folder`, which must not be there yet, and is gone again where that fails.

    `most` bytes at most; before any is written, `fits` is told how many there will be. Raises
    ArchiveFault, and OSError for a disk that is full or fails.
    """
    with _faults_told():
        size = 0
        for entry in _entries(file, most):
            size += entry.size
            if size > most:
                raise ArchiveTooLarge(f"it unpacks to more than {most} bytes")
    fits(size)
    folder.mkdir(parents=True)
    try:
        with _faults_told():
            for entry in _entries(file, most):
                size -= entry.size
                if size < 0:
                    raise ArchiveDamaged("it was changed while it was unpacked")
                entry.lay(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


@contextlib.contextmanager
def _faults_told() -> Iterator[None]:
    try:
        yield
    except ArchiveFault:
        raise
    except _DAMAGED as error:
        raise ArchiveDamaged from error
    except OSError as error:
        # Of a place in the archive that is none.
        if error.errno != errno.EINVAL:
            raise
        raise ArchiveDamaged from error


@dataclass(frozen=True)
class _Entry:
    """A file of `size` bytes, or a folder, at its place."""

    place: PurePosixPath
    size: int
    # Given the folder that it is laid in.
    opened: Callable[[Path], IO[bytes]] | None

    def lay(self, folder: Path) -> None:
        path = folder / self.place
        try:
            if self.opened is None:
                path.mkdir(parents=True, exist_ok=True)
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            # Never what is there already: of two with one name nobody knows which is meant.
            target = path.open("xb")
        except OSError as error:
            if error.errno not in _NO_PLACE:
                raise
            why = os.strerror(error.errno or 0)
            raise ArchiveFault(f"{_named(str(self.place))} cannot be written ({why})") from error
        with target, self.opened(folder) as source:
            left = self.size
            while left and (chunk := source.read(min(left, _CHUNK))):
                left -= len(chunk)
                target.write(chunk)
        if left:
            raise ArchiveDamaged


def _entries(file: Path, most: int) -> Iterator[_Entry]:
    """Each is to be read before the next one."""
    places = _Places()
    is_zip = file.name.lower().endswith(_ZIP)
    for number, entry in enumerate(_of_zip(file) if is_zip else _of_tar(file, most, places.sizes)):
        if number >= _MOST_ENTRIES:
            raise ArchiveFault(f"it holds more than {_MOST_ENTRIES} files and folders")
        places.add(entry)
        yield entry


class _Places:
    """Where there is something already: the sizes of files, and folders."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self._folders: set[str] = set()
        self._length = 0

    def add(self, entry: _Entry) -> None:
        name, is_file = str(entry.place), entry.opened is not None
        if name in self.sizes or (is_file and name in self._folders):
            raise ArchiveFault(f"{_named(name)} stands in it twice; pack it anew")
        self._length += len(name)
        if self._length > _LIST:
            raise ArchiveFault(f"the names in it have more than {_LIST} characters")
        if is_file:
            self.sizes[name] = entry.size
        else:
            self._folders.add(name)


def _of_zip(file: Path) -> Iterator[_Entry]:
    with file.open("rb") as stream, zipfile.ZipFile(_Source(stream, _LIST)) as archive:
        for row in archive.infolist():
            place = _place(row.filename)
            if stat.S_IFMT(row.external_attr >> 16) not in _FILE_OR_FOLDER:
                raise _no_file(row.filename)
            if row.flag_bits & 1 or row.compress_type not in _PACKED:
                raise ArchiveFault(
                    f"{_named(row.filename)} is encrypted, or packed otherwise than by deflate"
                )
            if row.is_dir():
                yield _Entry(place, 0, None)
            else:
                yield _Entry(place, row.file_size, partial(_zip_member, archive, row))


def _of_tar(file: Path, most: int, sizes: Mapping[str, int]) -> Iterator[_Entry]:
    """`sizes` are those of the files before each."""
    opened: Any = tarfile.open
    with (
        file.open("rb") as packed,
        _unzipped(packed) as stream,
        opened(
            fileobj=_Source(stream, _TAR_HEAD, most + _HEADS), mode="r:", tarinfo=_Row
        ) as archive,
    ):
        while (row := archive.next()) is not None:
            # Each has a copy of all that the heads before it said of the rest.
            archive.members.clear()
            place = _place(row.name)
            if row.size < 0:
                raise ArchiveDamaged
            if row.issparse():
                raise _sparse(row.name)
            if row.isdir():
                yield _Entry(place, 0, None)
            elif row.isreg():
                yield _Entry(place, row.size, partial(_tar_member, archive, row))
            elif row.islnk() and (linked := str(PurePosixPath(row.linkname))) in sizes:
                # One that leads to itself says that the file was named twice to its packer.
                if linked != str(place):
                    yield _Entry(place, sizes[linked], partial(_laid, linked))
            else:
                raise _no_file(row.name)


class _Row(tarfile.TarInfo):
    """A head of a tar, without the list of where a sparse file has bytes.

    tarfile reads as much of that as it says of itself, and where it leads back unzips all anew.
    """

    def _proc_sparse(self, _: object) -> NoReturn:
        raise _sparse(self.name)

    def _proc_gnusparse_10(self, row: tarfile.TarInfo, said: Mapping[str, str], _: object) -> None:
        raise _sparse(said.get("GNU.sparse.name", row.name))


def _unzipped(packed: IO[bytes]) -> Any:
    """Servers send it as gzip's of a tar, and what asks for it has the tar under that name."""
    head = packed.read(16)
    packed.seek(0)
    if _PACKED_OTHERWISE.match(head):
        raise ArchiveFault("it is not gzip's, whatever its name says; pack it with `tar -czf`")
    return gzip.GzipFile(fileobj=packed) if head.startswith(_GZIP) else packed


def _zip_member(archive: zipfile.ZipFile, row: zipfile.ZipInfo, _: Path) -> IO[bytes]:
    return archive.open(row)


def _tar_member(archive: tarfile.TarFile, row: tarfile.TarInfo, _: Path) -> IO[bytes]:
    found = archive.extractfile(row)
    assert found is not None
    return found


def _laid(name: str, folder: Path) -> IO[bytes]:
    return (folder / name).open("rb")


def _place(name: str) -> PurePosixPath:
    """Where it lies below the folder. Raises ArchiveFault where that is somewhere else."""
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts or "\0" in name:
        raise ArchiveFault(f"{_named(name)} does not lie in the archive's own folder")
    if len(place.parts) > _DEEPEST:
        raise ArchiveFault(f"{_named(name)} lies in more than {_DEEPEST - 1} folders")
    return place


def _no_file(name: str) -> ArchiveFault:
    return ArchiveFault(
        f"{_named(name)} is a link or another thing that is neither file nor folder; pack what a "
        "link leads to instead, as `tar -h` does"
    )


def _sparse(name: str) -> ArchiveFault:
    return ArchiveFault(
        f"{_named(name)} is packed without the holes in it, as a sparse file; pack it anew without "
        "GNU tar's -S, with bsdtar by --no-read-sparse"
    )


def _named(name: str) -> str:
    return f"its entry {name[:_NAMED]!r}"


class _Source:
    """A stream of which nobody reads more than so much at once, nor beyond `most` in all."""

    def __init__(self, stream: Any, at_once: int, most: int | None = None) -> None:
        self._stream = stream
        self._at_once = at_once
        self._most = most

    def read(self, size: int = -1) -> bytes:
        if size > self._at_once:
            raise ArchiveFault(f"a head or a list in it has more than {self._at_once} bytes")
        data: bytes = self._stream.read(self._at_once if size < 0 else size)
        self._look(self._stream.tell())
        return data

    def seek(self, place: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_SET:
            # In what is packed, all up to there is unpacked for it.
            self._look(place)
        return int(self._stream.seek(place, whence))

    def _look(self, place: int) -> None:
        if self._most is not None and place > self._most:
            raise ArchiveFault(f"its files and heads take more than {self._most} bytes")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
