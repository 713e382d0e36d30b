"""Models in a folder that several Tritons share, so that each is fetched once for all of them.

One fetches and the others wait, by a lock; what it has of a download that broke, the next one
takes up. A copy comes to its place whole, by one rename, so that a volume without locks costs no
more than fetching twice. Who asks for a model again gets it from its source: what was there before
may be why it was refused.

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

from transformer_serving.engine.controller.files.download import clear_unfinished
from transformer_serving.engine.controller.files.turn import turn

_log = logging.getLogger(__name__)
# Since anybody took it; whoever adds one clears away.
_KEPT_S = 30 * 86_400.0
_UNFINISHED_S = 86_400.0
_ASIDE = "."
_DOWNLOADS = ".downloads"

# The folder is for what has come so far, and nobody else writes there; None: there is none.
Fetch = Callable[[Path | None], AbstractContextManager[Path]]


class ModelCache:
    """`folder`: on the shared volume; None: every fetch is its own, and no model is kept.

    `downloads`: for what is under way where there is no `folder`; None: a break begins anew.
    """

    def __init__(self, folder: Path | None, downloads: Path | None = None) -> None:
        self._folder = folder
        self._downloads = downloads if folder is None else folder / _DOWNLOADS
        self._given: set[str] = set()

    @contextlib.contextmanager
    def model(self, content: str, fetch: Fetch) -> Iterator[Path]:
        """The file or folder that `content` stands for; not to be changed."""
        name = hashlib.sha256(content.encode()).hexdigest()[:32]
        if (path := self._kept(name)) is not None:
            yield path
            return
        with self._turn(name) as unfinished:
            if (path := self._kept(name)) is not None:
                yield path
                return
            with fetch(unfinished) as path:
                self._given.add(name)
                if self._folder is not None:
                    self._keep(path, self._folder / name)
                yield path

    def _kept(self, name: str) -> Path | None:
        """A copy that somebody else has fetched, the first time that it is asked for."""
        if self._folder is None or name in self._given:
            return None
        path = _taken(self._folder / name)
        if path is not None:
            self._given.add(name)
            _log.info("from the shared copies: %s", path.name)
        return path

    @contextlib.contextmanager
    def _turn(self, name: str) -> Iterator[Path | None]:
        """The folder for what is under way, as long as nobody else has it."""
        if self._downloads is None:
            yield None
            return
        clear_unfinished(self._downloads)
        folder = self._downloads / name
        with turn(self._downloads / f"{name}.lock", folder) as ours:
            yield folder if ours else None

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
        if entry.name == _DOWNLOADS:
            continue
        kept_s = _UNFINISHED_S if entry.name.startswith(_ASIDE) else _KEPT_S
        with contextlib.suppress(OSError):
            if now - entry.stat().st_mtime > kept_s:
                shutil.rmtree(entry)
