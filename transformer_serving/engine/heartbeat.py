"""The beats of a controller, which touches its state file each time it goes round.

Tested by tests/engine/test_container.py.
"""

from __future__ import annotations

import os
from pathlib import Path

# Between two looks at most as much is counted: of a container that was paused, or had no processor,
# the controller could not beat either.
_COUNTED_S = 1.0


class Heartbeat:
    """How long the `file` has not been touched, in seconds of a clock that only goes forward.

    No file's time is compared with a clock, as that one may be set.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._touched: int | None = None
        self._looked: float | None = None
        self._silent_s = 0.0

    def begin(self) -> None:
        """A controller has just been started: no beat is missing."""
        self._looked, self._silent_s = None, 0.0

    def silent_s(self, now: float) -> float:
        """0 while there is no file: the disk may have had no room for it."""
        touched = self._written()
        if touched is None or touched != self._touched or self._looked is None:
            self._silent_s = 0.0
        else:
            self._silent_s += min(now - self._looked, _COUNTED_S)
        self._touched, self._looked = touched, now
        return self._silent_s

    def can_beat(self) -> bool:
        """Whether the file takes one, as on a disk that is read-only it does not."""
        try:
            found = self._file.stat()
            os.utime(self._file, ns=(found.st_atime_ns, found.st_mtime_ns))
        except OSError:
            return False
        return True

    def _written(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return None
