"""The area of shared memory in which a model process gets its tensors, for its own user alone.

Triton makes it readable for everybody, and sets that mode whatever the umask is. It is closed as
early as our code runs in the process, before any request; who opened it in the moment before may
read on.

Tested by tests/engine/test_backends.py and tests/engine/test_orphans.py.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

FOLDER = Path("/dev/shm")
# The prefix that we tell Triton, and its own where it is told none.
_BEGINS = b"triton_"


def close_own_area() -> None:
    """That of the process which this is: Triton names it among its arguments."""
    for word in Path("/proc/self/cmdline").read_bytes().split(b"\0"):
        if word.startswith(_BEGINS) and b"/" not in word:
            close_area(FOLDER / os.fsdecode(word))


def close_area(area: Path) -> None:
    """One that has gone, or is another user's, stays as it is; a link there would be another's."""
    with contextlib.suppress(OSError):
        number = os.open(area, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fchmod(number, 0o600)
        finally:
            os.close(number)
