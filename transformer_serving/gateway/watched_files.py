"""Files that are read again when they change: keys, certificates."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from transformer_serving.contract.file_stamp import Stamp, stamp_of


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
