"""A folder's new content in its place: whoever is ended in between leaves the old one or the new.

Tested by tests/bundle/test_writer.py and tests/deploy/test_plain_triton.py.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing_folder(target: Path, *, aside: Path | None = None) -> Iterator[Path]:
    """A new folder that takes the place of `target` when the block ends without an error; what was
    there is there again when it does not.

    It is made in the folder `aside`, on the same disk, or else beside `target`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    workspace = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=aside or target.parent))
    fresh, old = workspace / "new", workspace / "old"
    try:
        fresh.mkdir()
        yield fresh
        if target.exists():
            # rename() cannot replace a folder that has files, so the old one steps aside first.
            target.rename(old)
        fresh.rename(target)
    finally:
        # The second rename failed, or somebody ended the command between the two.
        if old.exists() and not target.exists():
            old.rename(target)
        shutil.rmtree(workspace, ignore_errors=True)
