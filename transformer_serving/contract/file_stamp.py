"""What tells one state of a file from another.

Tested by tests/gateway/test_watched_files.py.
"""

from __future__ import annotations

from pathlib import Path

Stamp = tuple[int, int, int, int]


def stamp_of(path: Path) -> Stamp | None:
    """None where nothing is there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
