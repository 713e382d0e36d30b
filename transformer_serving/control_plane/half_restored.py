"""What a restore unpacks before it takes the place of the data: beside their folder, or inside it.

On one machine it lies beside, as two folders are exchanged; in a container the data are a volume.

Tested by tests/local/test_backup.py and tests/control_plane/test_container_backup.py.
"""

from __future__ import annotations

import shutil
from glob import escape
from pathlib import Path

RESTORING = "restoring-"


def beside(data: Path, moment: str) -> Path:
    """The folder of the restore of that moment."""
    return data.with_name(f"{data.name}.{RESTORING}{moment}")


def discard_half_restored(data: Path) -> None:
    """What restores left that were killed; for the holder of the data's lock, as one that is under
    way has it. Nothing of what was there before ever has such a name.
    """
    outside = data.parent.glob(f"{escape(data.name)}.{RESTORING}*")
    for left in (*data.glob(f"{RESTORING}*"), *outside):
        # The next one tries again; neither serving nor a restore depends on it.
        shutil.rmtree(left, ignore_errors=True)
