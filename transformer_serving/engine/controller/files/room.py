"""How much room the volume of the state has, where that is a number that no file system knows.

A pod's folder on its node's disk takes whatever the disk does; over its limit the kubelet ends the
pod, and the one in its place fetches the same models and is ended, too. So what would not fit is
not begun.

Tested by tests/engine/test_room.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.engine.errors import StorageError, TooLargeSoFar

STORE_BYTES_VARIABLE = "TRANSFORMER_SERVING_STORE_BYTES"
_BLOCK = 512
_MB = 1e6


@dataclass(eq=False)
class Share:
    """What one model on its way needs at its peak; `place` is where it comes to."""

    room: Room
    place: Path | None
    needed: int = 0

    def take(self, archive: int, unpacked: int, *, is_all: bool = True) -> None:
        """So many bytes, of what comes and of what is made of it; 0 for what is moved as it came.
        Not `is_all`: more may come, and nobody says how much.

        Raises StorageError, and of it TooLargeSoFar, where they are more than the others leave.
        """
        needed = unpacked + (archive if self.room.holds(self.place) else 0)
        self.room.give(self, needed, is_all=is_all)

    def lay(self, source: Path, part: Path) -> None:
        """All of it has come: what is still needed is what is moved or copied to `part`."""
        self.room.lay(self, part, _used(source))

    def come(self) -> int:
        """The bytes of it that are there."""
        return _used(self.place) if self.place is not None and self.room.holds(self.place) else 0


class Room:
    """Below `folder` at most `limit` bytes may lie; 0: no limit but the disk's."""

    def __init__(self, folder: Path | None = None, limit: int = 0) -> None:
        self._folder = folder
        self._limit = limit if folder is not None else 0
        self._lock = threading.Lock()
        self._shares: set[Share] = set()

    @property
    def is_limited(self) -> bool:
        return self._limit > 0

    @contextmanager
    def share(self, place: Path | None) -> Iterator[Share]:
        """Of a model, until it lies where it stays."""
        share = Share(self, place)
        with self._lock:
            self._shares.add(share)
        try:
            yield share
        finally:
            with self._lock:
                self._shares.discard(share)

    def holds(self, place: Path | None) -> bool:
        """Whether it lies there; the SDK's own cache does, which has no place."""
        if place is None or self._folder is None:
            return True
        return place.absolute().is_relative_to(self._folder.absolute())

    def lay(self, share: Share, part: Path, size: int) -> None:
        with self._lock:
            share.place, share.needed = part, size

    def give(self, share: Share, needed: int, *, is_all: bool = True) -> None:
        """Raises StorageError where it is not there, TooLargeSoFar where more may be needed."""
        if self._folder is None or not self.is_limited:
            return
        with self._lock:
            others = self._shares - {share}
            coming = sum(max(0, other.needed - other.come()) for other in others)
            left = self._limit - (_used(self._folder) - share.come()) - coming
            if needed > left:
                unsaid = "" if is_all else " or more (its server does not say how much)"
                raise (StorageError if is_all else TooLargeSoFar)(
                    f"the model needs {needed / _MB:.1f} MB{unsaid} while it is fetched, and of "
                    f"the {self._limit / _MB:.1f} MB for all models {max(0, left) / _MB:.1f} are "
                    "left: raise triton.store.size of the chart, or what gave "
                    f"{STORE_BYTES_VARIABLE}, or remove an endpoint"
                )
            share.needed = needed


def _used(folder: Path) -> int:
    """What a file, or the files below a folder, take of the disk; they come and go meanwhile."""
    if folder.is_file():
        return folder.stat().st_size
    used = 0
    for path, folders, files in os.walk(folder):
        for name in (*folders, *files):
            try:
                used += os.lstat(os.path.join(path, name)).st_blocks * _BLOCK
            except OSError:
                continue
    return used
