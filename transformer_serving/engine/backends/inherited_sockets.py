"""The sockets that Triton's stub inherits from the server, which are the server's alone.

Triton opens them without close-on-exec. While a stub outlives a server that was killed, the
connections of its clients would stay open with nobody to answer, and the port taken. In the
embedded stack they are unix sockets; the stub itself speaks with the server by shared memory.

Tested by tests/engine/test_orphans.py.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

_FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
# Below are those of the process's own words, which journald takes by a socket.
_FIRST = 3


def close_inherited_sockets() -> int:
    """Close every socket of this process but its standard ones; how many there were.

    To be called before it has any of its own.
    """
    closed = 0
    for entry in Path("/proc/self/fd").iterdir():
        number = int(entry.name)
        try:
            if number < _FIRST or not os.readlink(entry).startswith("socket:"):
                continue
            found = socket.socket(fileno=number)
        except OSError:
            continue
        if found.family in _FAMILIES:
            found.close()
            closed += 1
        else:
            found.detach()
    return closed
