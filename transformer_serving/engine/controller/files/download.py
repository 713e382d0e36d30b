"""A download over HTTP that goes on where it broke: after a lost connection, a restart.

The bytes so far lie in a folder, with the size and the tag of the file that they are of. The rest
is asked for with Range and If-Range (RFC 9110, 14.2 and 13.1.5), so that a file which has changed
meanwhile comes whole; so does one of a server that knows no ranges. What is in the bytes is for the
bundle's manifest to judge, as with any other copy.

Tested by tests/engine/test_download.py.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import requests

from transformer_serving.contract.full_disk import is_full_disk
from transformer_serving.contract.replacement import replace_file
from transformer_serving.engine.errors import EngineError, NotWanted, StorageError

Get = Callable[[Mapping[str, str]], requests.Response]
Fits = Callable[[int, bool], None]

_log = logging.getLogger(__name__)
_PART, _ABOUT = "part", "about.json"
# As much of a broken answer is lost.
_CHUNK = 64 * 1024
# What comes without its size, or beyond it, is let in by so much at a time.
_ROOM_EVERY = 1024 * 1024
# In a row, without a single byte.
_TRIES = 5
_PAUSE_S = 1.0
_SAID_EVERY_S = 15.0
# Since the last byte of what nobody took up again.
_KEPT_S = 86_400.0
_NOT_THERE = frozenset({404, 410})
_TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")
_MB = 1e6


class DownloadFailed(EngineError):
    """The file did not come; the message says how far it got."""


class DiskFull(DownloadFailed):
    """What came is given up; `needed` are the file's bytes, 0: not known."""

    def __init__(self, folder: Path, needed: int) -> None:
        super().__init__(f"the disk of {folder} has no room for it")
        self.needed = needed


class NotThere(DownloadFailed):
    """The server answered that it has no such file."""


@dataclass(frozen=True)
class _About:
    """Which file the bytes are of: its size in bytes, and its ETag or date; '' for neither."""

    size: int
    tag: str

    @classmethod
    def read(cls, path: Path) -> _About | None:
        try:
            values = json.loads(path.read_bytes())
            return cls(int(values["size"]), str(values["tag"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


class Download:
    """Of one file into `folder`, which is its own; `url` gives it its name. One at a time.

    `fits` hears of its bytes and whether these are all: they come unsaid, or beyond what was said,
    where not. It raises StorageError where they are too many.
    `is_wanted` is asked again and again, as nobody may want the file long before it is whole.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        fits: Fits | None = None,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._folder = folder
        self._fits = fits
        self._is_wanted = is_wanted
        self._part, self._state = folder / _PART, folder / _ABOUT
        self.path = folder / "whole" / _name(url)
        self._size = 0

    def fetch(self, get: Get) -> Path:
        """The file, whole. Raises DownloadFailed and NotWanted, which leave what came to the next
        call, and what `fits` raises.

        `get` asks for the file with some headers, without reading the body; what it raises of
        requests is an attempt that failed.
        """
        try:
            return self._whole(get)
        except StorageError:
            self.discard()
            raise
        except OSError as error:
            if not is_full_disk(error):
                raise
            # What came would keep the disk full, and there is no room for the rest.
            self.discard()
            raise DiskFull(self._folder.parent, self._size) from None

    def _whole(self, get: Get) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        failed, most = 0, self._come()
        while True:
            try:
                if self._go_on(get):
                    break
                reason = "the connection ended early"
            except requests.RequestException as error:
                reason = type(error).__name__
            # Of a server that begins anew each time it would go on for ever.
            failed, most = (0, self._come()) if self._come() > most else (failed + 1, most)
            if failed == _TRIES:
                raise DownloadFailed(
                    f"{reason}; {self._come() / _MB:.1f} MB of it came and are kept"
                )
            if failed:
                time.sleep(_PAUSE_S * 2 ** (failed - 1))
        self.path.parent.mkdir(exist_ok=True)
        return self._part.rename(self.path)

    def discard(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _come(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0

    def _go_on(self, get: Get) -> bool:
        """One answer's bytes behind those that are there; whether the file is whole then."""
        self._check_wanted()
        about = _About.read(self._state)
        self._is_of(about)
        come = self._come() if about is not None and about.tag else 0
        if about is not None and 0 < come == about.size:
            return True
        asked = {"Accept-Encoding": "identity"}
        if about is not None and come:
            asked |= {"Range": f"bytes={come}-", "If-Range": about.tag}
        with contextlib.closing(get(asked)) as answer:
            if answer.status_code == 206 and _continues(answer, come, about):
                _log.info("%s: goes on at %.1f MB", self.path.name, come / _MB)
            elif answer.status_code == 200:
                about, come = self._begin(answer), 0
            else:
                return self._refused(answer)
            with self._part.open("r+b") as file:
                file.truncate(come)
                file.seek(come)
                self._write(answer, file, about)
        return _ended(answer) if about is None else self._come() == about.size

    def _begin(self, answer: requests.Response) -> _About | None:
        """The bytes before are of another file, or of none."""
        about = _about(answer)
        self._is_of(about)
        self._state.unlink(missing_ok=True)
        self._part.write_bytes(b"")
        if about is not None:
            replace_file(self._state, json.dumps(asdict(about)).encode())
        return about

    def _is_of(self, about: _About | None) -> None:
        self._size = 0 if about is None else about.size
        if self._size and self._fits is not None:
            self._fits(self._size, True)

    def _check_wanted(self) -> None:
        if not self._is_wanted():
            raise NotWanted("nobody asks for it any more")

    def _refused(self, answer: requests.Response) -> bool:
        if answer.status_code in (206, 416):
            # Not the rest of what is here: the next attempt takes it from its beginning.
            self._state.unlink(missing_ok=True)
            return False
        if answer.status_code in _TRY_AGAIN:
            raise requests.HTTPError(response=answer)
        failed = NotThere if answer.status_code in _NOT_THERE else DownloadFailed
        raise failed(f"the server answered {answer.status_code}")

    def _write(self, answer: requests.Response, file: BinaryIO, about: _About | None) -> None:
        said, fitting = time.monotonic(), self._size
        for chunk in answer.iter_content(_CHUNK):
            if self._fits is not None and file.tell() + len(chunk) > fitting:
                fitting = file.tell() + len(chunk) + _ROOM_EVERY
                self._fits(fitting, False)
            file.write(chunk)
            self._check_wanted()
            if time.monotonic() - said > _SAID_EVERY_S:
                said = time.monotonic()
                size = "" if about is None else f" of {about.size / _MB:.1f}"
                _log.info("%s: %.1f%s MB", self.path.name, file.tell() / _MB, size)


def clear_unfinished(folder: Path) -> None:
    """Delete what lies in the folders in `folder` and got no byte for a day."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        with contextlib.suppress(OSError):
            last = max(path.stat().st_mtime for path in (entry, *entry.rglob("*")))
            if entry.is_dir() and time.time() - last > _KEPT_S:
                shutil.rmtree(entry)


@contextlib.contextmanager
def downloaded(
    url: str,
    folder: Path,
    get: Get,
    fits: Fits | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Iterator[Path]:
    """The file for as long as the block runs. Raises DownloadFailed, NotWanted, and what `fits`
    raises."""
    download = Download(url, folder, fits, is_wanted)
    path = download.fetch(get)
    try:
        yield path
    finally:
        download.discard()


def _about(answer: requests.Response) -> _About | None:
    """None where the size is not known: a body in chunks, or one that was compressed on its way."""
    size = answer.headers.get("Content-Length", "")
    if not size.isdigit() or answer.headers.get("Content-Encoding", "identity") != "identity":
        return None
    return _About(int(size), _tag(answer))


def _ended(answer: requests.Response) -> bool:
    """Whether all of a body came whose file's size is not known."""
    size = answer.headers.get("Content-Length", "")
    if size.isdigit():
        # Of what was compressed on its way, as that: a file that is served as gzip's, say.
        return int(answer.raw.tell()) == int(size)
    # Chunks have an end of their own; another body ends as one that broke does.
    return "chunked" in answer.headers.get("Transfer-Encoding", "")


def _tag(answer: requests.Response) -> str:
    """What If-Range may be asked with: a weak ETag may not."""
    tag = answer.headers.get("ETag", "")
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified", "")


def _continues(answer: requests.Response, come: int, about: _About | None) -> bool:
    """Whether these are the bytes behind those that came, of the same file."""
    found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    if found is None or about is None:
        return False
    return (int(found[1]), int(found[2]), _tag(answer)) == (come, about.size, about.tag)


def _name(url: str) -> str:
    """The last part of its path, for its suffix, in letters that the SDK takes as they are."""
    last = unquote(urlsplit(url).path).rpartition("/")[2]
    return re.sub(r"[^\w.-]", "_", last, flags=re.ASCII).lstrip(".")[-100:] or "model"
