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
from pathlib import Path
from typing import Any

from prometheus_client import mmap_dict, values

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

    def read_value(self, key: str) -> tuple[float, float]:
        """The value, and the time that belongs to it."""
        try:
            value, timestamp = (self._file or self._opened()).read_value(key)
        except OSError as error:
            self._tell(error)
            return 0.0, 0.0
        return value, timestamp

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        try:
            (self._file or self._opened()).write_value(key, value, timestamp)
        except OSError as error:
            self._tell(error)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

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
