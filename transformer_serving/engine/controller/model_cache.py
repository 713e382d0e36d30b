"""Models in a folder that several Tritons share, so that each is fetched once for all of them.

A copy comes to its place whole, by one rename, so that no lock is needed, which a shared volume may
not have. Two who fetch at the same time do so twice, and the later copy goes. Who asks for a model
again gets it from its source: what was there before may be why it was refused.

Tested by tests/engine/test_model_cache.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

_log = logging.getLogger(__name__)
# Since anybody took it; whoever adds one clears away.
_KEPT_S = 30 * 86_400.0
_UNFINISHED_S = 86_400.0
_ASIDE = "."

Fetch = Callable[[], AbstractContextManager[Path]]


class ModelCache:
    """`folder`: on the shared volume; None: every fetch is its own, and nothing is kept."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._given: set[str] = set()

    @contextlib.contextmanager
    def model(self, content: str, fetch: Fetch) -> Iterator[Path]:
        """The file or folder that `content` stands for; not to be changed."""
        name = hashlib.sha256(content.encode()).hexdigest()[:32]
        place = None if self._folder is None else self._folder / name
        if place is not None and name not in self._given and (path := _taken(place)) is not None:
            self._given.add(name)
            _log.info("from the shared copies: %s", path.name)
            yield path
            return
        with fetch() as path:
            self._given.add(name)
            if place is not None:
                self._keep(path, place)
            yield path

    def _keep(self, path: Path, place: Path) -> None:
        """A volume that is full or away is no reason not to serve."""
        aside = place.with_name(f"{_ASIDE}{uuid.uuid4().hex}")
        try:
            _clear(place.parent)
            aside.mkdir(parents=True)
            if path.is_dir():
                shutil.copytree(path, aside / path.name, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(path, aside / path.name)
            shutil.rmtree(place, ignore_errors=True)
            aside.rename(place)
        except OSError as error:
            _log.warning("no shared copy of %s: %s", path.name, error)
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
    for entry in folder.iterdir() if folder.is_dir() else ():
        kept_s = _UNFINISHED_S if entry.name.startswith(_ASIDE) else _KEPT_S
        with contextlib.suppress(OSError):
            if now - entry.stat().st_mtime > kept_s:
                shutil.rmtree(entry)
