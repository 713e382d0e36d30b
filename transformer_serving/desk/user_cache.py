"""The folder of what is this user's on this machine, whatever folder a command runs in.

Tested by tests/deploy/test_target.py and tests/builders/test_tensorrt.py.
"""

from __future__ import annotations

import os
from pathlib import Path

from transformer_serving.desk.failure import Failure


def user_cache() -> Path:
    """XDG_CACHE_HOME's, which counts only where it is no path of the current folder, or else
    ~/.cache's. Raises Failure (exit code 2) for a user without a home."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if os.path.isabs(given) else _home() / ".cache"
    return root / "transformer-serving"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise Failure(
            f"user {os.getuid()} has no home folder: HOME is not set, and the password database "
            "does not have this user; set XDG_CACHE_HOME, or HOME, to a folder that it may write "
            "to",
            exit_code=2,
        ) from error
