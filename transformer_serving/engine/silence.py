"""Who hangs: a controller that no longer touches its file, a Triton that no longer answers."""

from __future__ import annotations

import http.client
import os
import threading
from contextlib import closing
from pathlib import Path

# Between two looks at most as much is counted: in a container that was paused, or had no processor,
# nobody could show anything either.
_COUNTED_S = 1.0
_ASK_EVERY_S = 5.0
_ANSWER_S = 10.0


class Silence:
    """Seconds since a sign of life, of a clock that only goes forward."""

    def __init__(self) -> None:
        self._looked: float | None = None
        self._seconds = 0.0

    def begin(self) -> None:
        """It has just been started: no sign is missing."""
        self._looked, self._seconds = None, 0.0

    def seconds(self, now: float, *, sign: bool) -> float:
        """`sign`: there was one since the last look."""
        if sign or self._looked is None:
            self._seconds = 0.0
        else:
            self._seconds += min(now - self._looked, _COUNTED_S)
        self._looked = now
        return self._seconds


class Heartbeat:
    """How long the `file` has not been touched.

    No file's time is compared with a clock, as that one may be set.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._touched: int | None = None
        self._silence = Silence()

    def begin(self) -> None:
        """A controller has just been started."""
        self._silence.begin()

    def silent_s(self, now: float) -> float:
        """0 while there is no file: the disk may have had no room for it."""
        before, self._touched = self._touched, self._written()
        is_new = self._touched is None or self._touched != before
        return self._silence.seconds(now, sign=is_new)

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


class Liveness:
    """How long a Triton at `address`, host:port, has not answered whether it is alive.

    It is asked in a thread, as one that hangs takes the question and keeps it. Any HTTP status is
    an answer. One that loads models answers, however long that takes: others of its threads load.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._silence = Silence()
        # How many have come by now, at the last look and at Triton's start.
        self._come = self._seen = self._before = 0
        self._is_over = threading.Event()
        self._asking: threading.Thread | None = None

    def begin(self) -> None:
        """A Triton has just been started."""
        self._silence.begin()
        self._seen = self._before = self._come
        if self._asking is None:
            self._asking = threading.Thread(target=self._ask, daemon=True)
            self._asking.start()

    def silent_s(self, now: float) -> float:
        """0 before its first answer: a start takes as long as it takes."""
        before, self._seen = self._seen, self._come
        starts = self._seen == self._before
        return self._silence.seconds(now, sign=starts or self._seen != before)

    def end(self) -> None:
        """It is asked no more."""
        self._is_over.set()

    def _ask(self) -> None:
        while not self._is_over.wait(_ASK_EVERY_S):
            self._come += is_live(self._address)


def is_live(address: str) -> bool:
    with closing(http.client.HTTPConnection(address, timeout=_ANSWER_S)) as connection:
        try:
            connection.request("GET", "/v2/health/live")
            connection.getresponse()
        except (OSError, http.client.HTTPException):
            return False
    return True
