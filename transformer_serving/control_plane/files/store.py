"""The file store: whole files under plain paths, which never lead out of its folder."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.file_path import path_parts, places

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
# What the system answers where a path runs into a file, a folder or a symbolic link.
_BLOCKED = frozenset({errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOTEMPTY, errno.EEXIST})


@dataclass(frozen=True)
class StoredFile:
    """An open file of the store; a later upload of the same path does not change its bytes.

    Reads and the end may come from several threads. They wait for each other: were the file
    closed under a read, that read could go to the next file opened, which takes the same
    descriptor, and leave its reader with nothing.
    """

    content: FileIO
    size: int
    modified: float
    # Of these bytes and no others: a later upload is another file on the disk.
    tag: str
    _one_thread: threading.Lock = field(default_factory=threading.Lock)

    def read(self, size: int, at: int) -> bytes:
        with self._one_thread:
            self.content.seek(at)
            return self.content.read(size)

    def close(self) -> None:
        with self._one_thread:
            self.content.close()


class Incoming:
    """A file being received, beside the store, invisible until it is put in place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = FileIO(path, "xb")

    def write(self, chunk: bytes) -> None:
        # A raw write may take less than it is given.
        view = memoryview(chunk)
        while view:
            view = view[self._file.write(view) :]

    def discard(self) -> None:
        self._file.close()
        with suppress(FileNotFoundError):
            self._path.unlink()

    def move(self, folder: int, name: str, placing: threading.Lock) -> None:
        """Puts the whole file in place at once; on return name and bytes are on the disk."""
        os.fsync(self._file.fileno())
        with placing:
            os.rename(self._path, name, dst_dir_fd=folder)
        os.fsync(folder)
        self._file.close()


class FileStore:
    """Files by path. Every step of a path is opened without following symbolic links."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "files"
        self._incoming = folder / "incoming"
        # So that nothing is put under a name between the look at its file and the file's removal.
        self._placing = threading.Lock()
        for path in (self._root, self._incoming):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        # What a killed process was receiving was never acknowledged.
        for left in self._incoming.iterdir():
            left.unlink()

    def receive(self) -> Incoming:
        return Incoming(self._incoming / uuid.uuid4().hex)

    def put(self, incoming: Incoming, path: str) -> None:
        try:
            self._place(incoming, path)
        except FileNotFoundError:
            # A folder of the path was empty for a day, and was removed just now.
            self._place(incoming, path)

    def _place(self, incoming: Incoming, path: str) -> None:
        *folders, name = path_parts(path)
        with _refusing_blocked(), self._folder(folders, create=True) as folder:
            incoming.move(folder, name, self._placing)

    def open(self, path: str) -> StoredFile:
        opened = (self._open_at(names) for names in places(path))
        descriptor = next((one for one in opened if one is not None), None)
        if descriptor is None:
            raise ApiError(ApiFailure.FILE_NOT_FOUND)
        content = FileIO(descriptor, "rb")
        status = os.fstat(descriptor)
        tag = f'"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"'
        return StoredFile(content, status.st_size, status.st_mtime, tag)

    def delete(self, path: str, before: float | None = None) -> bool:
        """Removes a file; whether there was one. Folders stay until `discard_left`.

        On return it is gone for good: who asked is told so. With `before`, in seconds since the
        epoch, only one that came earlier, and without waiting for the disk: nobody names what is
        collected, so one that a power cut brings back is nobody's still, and is collected again.
        What comes to its place syncs the folder itself.
        """
        # Wherever it lies: what is left at the second place would be read from now on.
        deleted = [self._delete_at(names, before) for names in places(path)]
        return any(deleted)

    def _open_at(self, names: Sequence[str]) -> int | None:
        *folders, name = names
        try:
            with self._folder(folders, create=False) as folder:
                descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
        except OSError as error:
            if error.errno in _BLOCKED or error.errno in (errno.ENOENT, errno.ENXIO):
                return None
            raise
        if _is_file(descriptor):
            return descriptor
        os.close(descriptor)
        return None

    def _delete_at(self, names: Sequence[str], before: float | None) -> bool:
        *folders, name = names
        try:
            with self._folder(folders, create=False) as folder:
                with self._placing:
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    came_since = before is not None and status.st_mtime >= before
                    if came_since or stat.S_ISDIR(status.st_mode):
                        return False
                    os.unlink(name, dir_fd=folder)
                if before is None:
                    os.fsync(folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno == errno.ELOOP:
                return False
            raise
        return True

    def all(self) -> Iterator[tuple[str, float]]:
        """Every stored file: its path and when it came, in seconds since the epoch."""
        for folder, _, names in os.walk(self._root):
            for name in names:
                with suppress(FileNotFoundError):
                    path = Path(folder, name)
                    yield str(path.relative_to(self._root)), path.lstat().st_mtime

    def discard_left(self, before: float) -> None:
        """What uploads and backups left that were lost; one under way has written since. And
        folders that nothing was put into or taken from since.
        """
        for left in (*self._incoming.iterdir(), *self._root.parent.glob("backup-*")):
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < before:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        for folder, _, _ in os.walk(self._root, topdown=False):
            # One that is not empty refuses.
            with suppress(OSError):
                if Path(folder) != self._root and os.stat(folder).st_mtime < before:
                    os.rmdir(folder)

    @contextmanager
    def _folder(self, names: Sequence[str], create: bool) -> Iterator[int]:
        descriptor = os.open(self._root, _FOLDER_FLAGS)
        try:
            for name in names:
                if create:
                    _make_folder(name, descriptor)
                inner = os.open(name, _FOLDER_FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


def _make_folder(name: str, parent: int) -> None:
    try:
        os.mkdir(name, mode=0o700, dir_fd=parent)
    except FileExistsError:
        return
    os.fsync(parent)


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


@contextmanager
def _refusing_blocked() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _BLOCKED:
            raise ApiError(
                ApiFailure.FIELD_VALUE, "path runs into an existing file or folder"
            ) from error
        raise
