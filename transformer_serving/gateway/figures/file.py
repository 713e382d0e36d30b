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
from collections.abc import Iterable, Set
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

    def rows(self) -> Any:
        """Key, value, time and place of each value, as they are now."""
        read: Any = self.read_all_values_from_file
        # Not by its name, as above.
        return read(f"/proc/self/fd/{self._f.fileno()}")


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
        # Let go of, and not used again since.
        self._gone: set[str] = set()
        # Used since the file is being made anew; None while it is not.
        self._used_meanwhile: set[str] | None = None
        # What is renewed and what is written come from several threads.
        self._turn = Lock()
        self._renewal = Lock()
        with _files_turn:
            _files.add(self)

    def read_value(self, key: str) -> tuple[float, float]:
        """The value, and the time that belongs to it."""
        try:
            with self._turn:
                value, timestamp = self._for(key).read_value(key)
        except OSError as error:
            self._tell(error)
            return 0.0, 0.0
        return value, timestamp

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        try:
            with self._turn:
                self._for(key).write_value(key, value, timestamp)
        except OSError as error:
            self._tell(error)

    def let_go(self, key: str) -> None:
        """It leaves with the next renewal, unless it is used again before."""
        with self._turn:
            self._gone.add(key)

    def renew(self) -> None:
        """Make the file anew where keys were let go of, or where somebody took it: with all else
        that it held, which is still in memory. Figures are written meanwhile.
        """
        with self._renewal:
            with self._turn:
                old = self._file
                if old is None or not (self._gone or old.was_taken):
                    return
                gone, rows = frozenset(self._gone), old.rows()
                self._used_meanwhile = set()
            try:
                self._replace(old, rows, gone)
            except OSError as error:
                self._tell(error)
            finally:
                with self._turn:
                    self._used_meanwhile = None

    def close(self) -> None:
        with _files_turn:
            _files.discard(self)
        if self._file is not None:
            self._file.close()

    def _replace(
        self, old: Any, rows: Iterable[tuple[str, float, float, int]], gone: Set[str]
    ) -> None:
        """In its place at once: another worker's page reads the old file or the new one, whole."""
        path = Path(self._filename)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as new:
            made: Any = FiguresFile(str(new))
            for key, value, timestamp, _ in rows:
                if key not in gone:
                    made.write_value(key, value, timestamp)
            with self._turn:
                used = self._used_meanwhile or set()
                for key in used:
                    made.write_value(key, *old.read_value(key))
                self._file = made
                self._gone -= gone - used
        old.close()

    def _for(self, key: str) -> Any:
        """The file that holds the key from now on."""
        self._gone.discard(key)
        if self._used_meanwhile is not None:
            self._used_meanwhile.add(key)
        return self._file or self._opened()

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
_files_turn = Lock()


def renew_files() -> None:
    """Those of this worker that a cleaner of temporary files took, or that have keys that were let
    go of. To be called beside the event loop.
    """
    with _files_turn:
        files = tuple(_files)
    for file in files:
        file.renew()


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
