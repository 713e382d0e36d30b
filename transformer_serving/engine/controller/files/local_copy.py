"""A model as it was fetched, before Triton's repository has it.

Tested by tests/engine/test_repository.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformer_serving.engine.controller.files.room import Share


@dataclass(frozen=True)
class LocalCopy:
    """A file or folder that is not to be changed. `ours`: it goes after its use, and may be moved
    away instead; a user's own file and what others read may not. `share` is its part of the room.
    """

    path: Path
    ours: bool = False
    share: Share | None = None
