"""Folders' new content in their places: an error or a signal in between leaves the old or the new.

Who is killed while the new content is made leaves it to the next command to remove; between two
renames, neither in its place, and the old one beside it.

Tested by tests/bundle/test_writer.py and tests/deploy/test_plain_triton.py.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.desk.scratch import scratch_beside

_MADE = ".made."


@dataclass(frozen=True)
class _Place:
    """`fresh` is what is to be at `target`, and `old` where that steps aside to."""

    target: Path
    fresh: Path
    old: Path

    def clear(self) -> None:
        """rename() cannot replace a folder that has files."""
        if os.path.lexists(self.target):
            self.target.rename(self.old)


def place_of(target: Path) -> Path:
    """Where a folder of this name is: for a link, whether or not there is anything yet, what it
    leads to."""
    return target.resolve() if target.is_symlink() else target


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """A new folder that takes the place of `target` when the block ends without an error; what was
    there is there again when it does not.

    It is made beside `target`, or beside what that leads to where it is a link, which stays.
    """
    target = place_of(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing_folders([target], aside=target.parent) as (fresh,):
        yield fresh


@contextmanager
def replacing_folders(targets: Sequence[Path], *, aside: Path) -> Iterator[list[Path]]:
    """Likewise new folders for all `targets`, which are replaced when each is whole.

    The last one works with the others: it is away while they change, so that also who is killed
    in between leaves none that works with what is not its own. They are made in the folder
    `aside`, on the same disk.
    """
    with scratch_beside(aside / targets[0].name, _MADE) as scratch:
        made = [scratch / target.name / "new" for target in targets]
        for folder in made:
            folder.mkdir(parents=True)
        yield made
        _rename(targets, made, aside)


def _rename(targets: Sequence[Path], made: Sequence[Path], aside: Path) -> None:
    # Not in the scratch, which the next command removes.
    workspace = Path(tempfile.mkdtemp(prefix=f".{targets[0].name}.", dir=aside))
    places = [
        _Place(target, fresh, workspace / target.name / "old")
        for target, fresh in zip(targets, made, strict=True)
    ]
    try:
        for place in places:
            place.old.parent.mkdir()
        _replace(places)
    finally:
        # A rename failed, or somebody ended the command between two of them. Where this fails too,
        # the old ones stay in the workspace.
        _put_back(places)
        shutil.rmtree(workspace, ignore_errors=True)


def _replace(places: Sequence[_Place]) -> None:
    *others, last = places
    last.clear()
    for place in others:
        place.clear()
        place.fresh.rename(place.target)
    last.fresh.rename(last.target)


def _put_back(places: Sequence[_Place]) -> None:
    *others, last = places
    # It is made last and takes its place last: all are replaced, or not all were made.
    if not last.fresh.exists():
        return
    for place in others:
        if not place.fresh.exists():
            place.target.rename(place.fresh)
        if os.path.lexists(place.old):
            place.old.rename(place.target)
    if os.path.lexists(last.old):
        last.old.rename(last.target)
