"""Files of figures that have room on the disk before anything is written into them.

prometheus_client makes its files longer by `truncate`, which takes no room, and maps them into
memory. To write where the disk then has no room is no error there but SIGBUS, which ends the
process, and every worker after it at its first figure. So room is asked for before: a refusal of
that is an OSError.

Tested by tests/gateway/test_figures_file.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakSet

from prometheus_client import mmap_dict, values

from transformer_serving.contract.replacement import replacing

log = logging.getLogger("transformer_serving.gateway")
# Of a value beside its key: the key's length, what pads it, and two numbers.
_MOST_BESIDE_A_KEY = 4 + 8 + 16


class FiguresFile(mmap_dict.MmapedDict):
    """Raises OSError where there is no room for a new value; old ones have theirs."""

    def __init__(self, filename: str) -> None:
        _make_room(filename, mmap_dict._INITIAL_MMAP_SIZE)
        super().__init__(filename)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        end = self._used + _MOST_BESIDE_A_KEY + len(key.encode())
        room = self._capacity
        while room < end:
            # As it grows there.
            room *= 2
        if room > self._capacity:
            # Not by its name, which somebody may have taken away.
            _make_room(f"/proc/self/fd/{self._f.fileno()}", room)
        super()._init_value(key)  # type: ignore[no-untyped-call]

    @property
    def was_taken(self) -> bool:
        """Whether somebody deleted it, so that what is written here nobody else reads."""
        return os.fstat(self._f.fileno()).st_nlink == 0


class WorkersFile:
    """What prometheus_client writes a worker's figures into: no request fails for want of room.

    Each value is written as a whole whenever it changes, so one that finds no room, or no folder,
    is there with its first change after that.
    """

    def __init__(self, filename: str) -> None:
        self._filename = filename
        # A FiguresFile once there was room for it, whose own methods have no types.
        self._file: Any = None
        self._is_told = False
        # What is renewed and what is written come from several threads.
        self._turn = Lock()
        _files.add(self)

    def read_value(self, key: str) -> tuple[float, float]:
        """The value, and the time that belongs to it."""
        try:
            with self._turn:
                value, timestamp = (self._file or self._opened()).read_value(key)
        except OSError as error:
            self._tell(error)
            return 0.0, 0.0
        return value, timestamp

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        try:
            with self._turn:
                (self._file or self._opened()).write_value(key, value, timestamp)
        except OSError as error:
            self._tell(error)

    def make_again(self) -> None:
        """Where somebody took the file: with all that it held, which is still in memory."""
        with self._turn:
            if self._file is not None and self._file.was_taken:
                self._renew(lambda key: True)

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Make the file anew without these keys, if it has any."""
        with self._turn:
            if self._file is not None and any(is_gone(key) for key, *_ in self._rows()):
                self._renew(lambda key: not is_gone(key))

    def close(self) -> None:
        _files.discard(self)
        if self._file is not None:
            self._file.close()

    def _rows(self) -> Any:
        return self._file.read_all_values()

    def _renew(self, is_kept: Callable[[str], bool]) -> None:
        """In its place at once: another worker's page reads the old file or the new one, whole."""
        path = Path(self._filename)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(path) as new:
                made: Any = FiguresFile(str(new))
                for key, value, timestamp in self._rows():
                    if is_kept(key):
                        made.write_value(key, value, timestamp)
        except OSError as error:
            self._tell(error)
            return
        self._file.close()
        self._file = made

    def _opened(self) -> Any:
        # A cleaner of temporary files may have taken the folder.
        Path(self._filename).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = FiguresFile(self._filename)
        return self._file

    def _tell(self, error: OSError) -> None:
        """Once: it is tried again with every change of a figure."""
        if not self._is_told:
            self._is_told = True
            log.warning(
                "figures cannot be kept in %s: %s; make room there, and they are shown again",
                Path(self._filename).parent, error.strerror,
            )  # fmt: skip


# Of this process: one of each kind of figure.
_files: WeakSet[WorkersFile] = WeakSet()


def make_files_again() -> None:
    """Those of this worker that a cleaner of temporary files took."""
    for file in tuple(_files):
        file.make_again()


def forget_keys(is_gone: Callable[[str], bool]) -> None:
    """In this worker's files; a figure that is told again is there again, as a new one."""
    for file in tuple(_files):
        file.forget(is_gone)


def keep_figures_with_room() -> None:
    """Of this process, before its first one."""
    library: Any = values
    library.MmapedDict = WorkersFile


def _make_room(path: str, size: int) -> None:
    """Opened anew, as a file that is only appended to cannot be given room on every file system."""
    number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        os.posix_fallocate(number, 0, max(size, os.fstat(number).st_size))
    except OSError:
        # Older code in the process falls over one with nothing in it.
        if not os.fstat(number).st_size:
            Path(path).unlink(missing_ok=True)
        raise
    finally:
        os.close(number)
