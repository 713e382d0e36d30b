"""What a full disk raises, so that it is told from a file that is wrong.

Tested by tests/local/test_backup.py, tests/control_plane/test_store.py and
tests/engine/test_download.py.
"""

from __future__ import annotations

import errno

FULL = (errno.ENOSPC, errno.EDQUOT)
# sqlite3.SQLITE_FULL, which Python 3.10 has no name for.
_SQLITE_FULL = 13


def is_full_disk(error: BaseException) -> bool:
    """Whether the disk, or this user's share of it, had no room: an OSError or one of SQLite."""
    return (
        getattr(error, "errno", None) in FULL
        or getattr(error, "sqlite_errorcode", None) == _SQLITE_FULL
    )
