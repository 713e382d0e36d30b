"""Files that are read again when they change: keys, certificates."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_Stamp = tuple[int, int, int] | None


class WatchedFiles:
    """Whether any of the files was written, replaced or removed since it was last asked for."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._paths = tuple(paths)
        self._seen = self._stamps()

    def changed(self) -> bool:
        """Once for each change; a few microseconds a file."""
        before, self._seen = self._seen, self._stamps()
        return before != self._seen

    def _stamps(self) -> tuple[_Stamp, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
