"""Reading the small JSON files of a model folder.

Tested by tests/source/test_model.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None when the file is absent, not JSON or no object."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None
