"""Models in a folder that several Tritons share, so that each is fetched once for all of them.

One fetches and the others wait, by a lock; what it has of a download that broke, the next one
takes up. A copy comes to its place whole, by one rename, so that a volume without locks costs no
more than fetching twice. Who asks for a model again gets it from its source: what was there before
may be why it was refused. A volume that is full loses the copies that were taken longest ago, and
where these give no room, the model comes to this machine alone.

Tested by tests/engine/test_model_cache.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from transformer_serving.contract.error_line import one_line
from transformer_serving.engine.controller.files.download import clear_unfinished
from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.controller.files.room import Room, Share
from transformer_serving.engine.controller.files.turn import turn
from transformer_serving.engine.errors import NoRoom

_log = logging.getLogger(__name__)
# Since anybody took it; whoever adds one clears away.
_KEPT_S = 30 * 86_400.0
_UNFINISHED_S = 86_400.0
# Since anybody took it: who did has copied it by then, so that it may make room for another one.
_IN_USE_S = 3_600.0
_ASIDE = "."
_DOWNLOADS = ".downloads"
# A copy's folder is named by what it stands for, one that is not whole yet by chance.
_OURS = re.compile(rf"{re.escape(_ASIDE)}?[0-9a-f]{{32}}")

# The folder is for what has come so far, and nobody else writes there; None: there is none.
Fetch = Callable[[Path | None, Share], AbstractContextManager[LocalCopy]]


class ModelCache:
    """`folder`: on the shared volume; None: every fetch is its own, and no model is kept.

    `downloads`: for what is under way where there is no `folder`, or no room in it; None: a break
    begins anew. `room` is that of the state, which what is fetched comes to in the end.
    """

    def __init__(
        self, folder: Path | None, downloads: Path | None = None, room: Room | None = None
    ) -> None:
        self._folder = folder
        self._downloads = downloads
        self._room = room or Room()
        self._given: set[str] = set()

    @contextlib.contextmanager
    def model(self, content: str, fetch: Fetch) -> Iterator[LocalCopy]:
        """The file or folder that `content` stands for. Raises StorageError."""
        name = _name(content)
        with contextlib.ExitStack() as stack:
            yield self._kept(name, stack) or self._come(name, fetch, stack)

    def keep_only(self, contents: Iterable[str]) -> None:
        """Delete what came of others into the folder that nobody else has, unless it still comes:
        a download that broke is taken up by its own model's alone."""
        if self._downloads is None:
            return
        for name in _begun(self._downloads) - {_name(content) for content in contents}:
            folder = self._downloads / name
            with turn(_lock(folder), folder, patience_s=0.0) as ours:
                if ours:
                    shutil.rmtree(folder, ignore_errors=True)

    def _come(self, name: str, fetch: Fetch, stack: contextlib.ExitStack) -> LocalCopy:
        """By way of the shared volume, so that who waits has it too, or without."""
        if self._folder is not None:
            try:
                return self._come_shared(self._folder, name, fetch, stack)
            except (NoRoom, OSError) as error:
                _log.warning("not by way of %s: %s", self._folder, one_line(error))
        return self._fetched(self._downloads, name, fetch, stack)

    def _come_shared(
        self, folder: Path, name: str, fetch: Fetch, stack: contextlib.ExitStack
    ) -> LocalCopy:
        """Raises NoRoom where no copies that nobody takes make enough of it."""
        try:
            return self._fetched(folder / _DOWNLOADS, name, fetch, stack)
        except NoRoom as full:
            free = shutil.disk_usage(folder).free
            # What is free may be more than our share of the volume, which is full then.
            lacking = full.needed - free if free < full.needed else full.needed
            if not _make_room(folder, lacking):
                raise
        return self._fetched(folder / _DOWNLOADS, name, fetch, stack)

    def _fetched(
        self, downloads: Path | None, name: str, fetch: Fetch, stack: contextlib.ExitStack
    ) -> LocalCopy:
        """From its source, unless somebody else did so meanwhile; for as long as `stack` is."""
        with contextlib.ExitStack() as attempt:
            unfinished = attempt.enter_context(_turn(downloads, name))
            copy = self._kept(name, attempt)
            if copy is None:
                share = attempt.enter_context(self._room.share(unfinished))
                copy = attempt.enter_context(fetch(unfinished, share))
                self._given.add(name)
                if self._folder is not None:
                    _keep(copy.path, self._folder / name)
            stack.push(attempt.pop_all())
        return copy

    def _kept(self, name: str, stack: contextlib.ExitStack) -> LocalCopy | None:
        """A copy that somebody else has fetched, the first time that it is asked for."""
        if self._folder is None or name in self._given:
            return None
        path = _taken(self._folder / name)
        if path is None:
            return None
        share = stack.enter_context(self._room.share(self._folder))
        share.take(0, _size(path))
        self._given.add(name)
        _log.info("from the shared copies: %s", path.name)
        return LocalCopy(path, share=share)


@contextlib.contextmanager
def _turn(downloads: Path | None, name: str) -> Iterator[Path | None]:
    """The folder for what is under way, as long as nobody else has it."""
    if downloads is None:
        yield None
        return
    clear_unfinished(downloads)
    folder = downloads / name
    with turn(_lock(folder), folder) as ours:
        yield folder if ours else None


def _name(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _begun(downloads: Path) -> set[str]:
    """What was ever begun there and is not over, by its name."""
    entries = downloads.iterdir() if downloads.is_dir() else ()
    return {entry.stem for entry in entries if _OURS.fullmatch(entry.stem)}


def _keep(path: Path, place: Path) -> None:
    """A volume that is full or away is no reason not to serve."""
    aside = place.with_name(f"{_ASIDE}{uuid.uuid4().hex}")
    try:
        _clear(place.parent)
        aside.mkdir(parents=True)
        _make_room(place.parent, _size(path) - shutil.disk_usage(aside).free)
        if path.is_dir():
            shutil.copytree(path, aside / path.name, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(path, aside / path.name)
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)
    except OSError as error:
        _log.warning("no shared copy of %s in %s: %s", path.name, place.parent, one_line(error))
        shutil.rmtree(aside, ignore_errors=True)


def _taken(place: Path) -> Path | None:
    """What is kept there, with a note that somebody took it."""
    try:
        os.utime(place)
        (path,) = place.iterdir()
    except (OSError, ValueError):
        return None
    return path


def _clear(folder: Path) -> None:
    now = time.time()
    for entry in _ours(folder) if folder.is_dir() else ():
        kept_s = _UNFINISHED_S if entry.name.startswith(_ASIDE) else _KEPT_S
        with contextlib.suppress(OSError):
            if now - entry.stat().st_mtime > kept_s:
                shutil.rmtree(entry)


def _ours(folder: Path) -> Iterator[Path]:
    """What was put there for this; a claim of somebody's may hold other things."""
    return (entry for entry in folder.iterdir() if _OURS.fullmatch(entry.name))


def _make_room(folder: Path, lacking: int) -> bool:
    """Delete the copies that were taken longest ago, of so many bytes; none where all together have
    fewer. Whether there are any."""
    unused = sorted(_unused(folder))
    if lacking <= 0 or sum(size for _, size, _ in unused) < lacking:
        return False
    for _, size, copy in unused:
        if lacking > 0:
            _log.info("gives way to another model: %s", copy)
            shutil.rmtree(copy, ignore_errors=True)
            lacking -= 0 if copy.exists() else size
    return True


def _unused(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """The copies that nobody is at: when they were taken, their bytes, where they are."""
    for entry in _ours(folder):
        with contextlib.suppress(OSError):
            taken = entry.stat().st_mtime
            if not entry.name.startswith(_ASIDE) and time.time() - taken > _IN_USE_S:
                yield taken, _size(entry), entry


def _size(path: Path) -> int:
    return sum(one.stat().st_size for one in (path, *path.rglob("*")) if one.is_file())
