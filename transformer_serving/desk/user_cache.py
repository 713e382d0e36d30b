"""The folder of what is this user's on this machine, whatever folder a command runs in.

Tested by tests/deploy/test_target.py and tests/builders/test_tensorrt.py.
"""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """XDG_CACHE_HOME's, which counts only where it is no path of the current folder, or else
    ~/.cache's."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    return root / "transformer-serving"
