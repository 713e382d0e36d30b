"""A lock of the kernel's on an open file, which goes with its process however that ends.

Tested by tests/deploy/test_target.py and tests/local/test_turn.py.
"""

from __future__ import annotations

import fcntl
from typing import IO, Any


def taken(lock: IO[Any]) -> bool:
    """Take it without waiting; whether it could be had."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_for(lock: IO[Any]) -> None:
    """Take it, however long another process has it."""
    fcntl.flock(lock, fcntl.LOCK_EX)
