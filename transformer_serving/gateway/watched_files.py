"""Files that are read again when they change: keys, certificates."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

Stamp = tuple[int, int, int, int]


class WatchedFiles:
    """Whether any of the files was written, replaced or removed since it was last asked for."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._stamps()

    def changed(self) -> bool:
        """Once for each change; a few microseconds a file."""
        before, self._seen = self._seen, self._stamps()
        return before != self._seen

    def _stamps(self) -> tuple[Stamp | None, ...]:
        return tuple(map(stamp_of, self._paths))


def stamp_of(path: Path) -> Stamp | None:
    """What tells one state of a file from another; None where nothing is there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
