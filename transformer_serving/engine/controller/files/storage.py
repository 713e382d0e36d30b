"""Files of the registry, through the ClearML SDK, which begins a broken download anew.

Models on a web server, ClearML's file server first of all, come by a download that goes on. What
they are packed in is unpacked here: the SDK follows links that lead out of its folder.

Tested by tests/engine/test_storage.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests
from clearml.storage import StorageManager
from clearml.storage.cache import CacheManager
from clearml.storage.helper import StorageHelper, _HttpDriver

from transformer_serving.contract.addresses import shown_address, shown_error
from transformer_serving.contract.archives import (
    ArchiveDamaged,
    ArchiveFault,
    ArchiveTooLarge,
    is_archive,
    unpack,
)
from transformer_serving.contract.full_disk import is_full_disk
from transformer_serving.engine.controller.files.download import (
    DiskFull,
    DownloadFailed,
    Get,
    NotThere,
    downloaded,
)
from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.controller.files.room import Share
from transformer_serving.engine.errors import EngineError, NoRoom, NotStored, StorageError

# To connect, and between two bytes.
_TIMEOUT_S = (30, 30)
# The SDK's cache may be a user's, with other things in it.
_CONTEXT = re.compile("engine-[0-9a-f]{32}")


@contextlib.contextmanager
def model_copy(
    uri: str,
    unfinished: Path | None,
    share: Share,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Iterator[LocalCopy]:
    """The model's file, or the folder that an archive holds. Raises StorageError, and of it NoRoom
    where the volume of `unfinished` is full, and EngineError for an archive that is refused.

    `unfinished`: the folder for what has come so far, where one is; `share` of the state's room. A
    download of ours ends where it is not wanted any more.
    """
    _check(uri, "model")
    get = None if unfinished is None else web_get(uri)
    with contextlib.ExitStack() as stack:
        if get is None or unfinished is None:
            if share.room.is_limited:
                _take(share, uri, _stored_bytes(uri))
            copy = stack.enter_context(fresh_copy(uri, "model"))
            # It is there, and counted as what lies there.
            archive = 0
        else:
            file = stack.enter_context(_downloaded(uri, unfinished, get, share, is_wanted))
            copy, archive = LocalCopy(file, ours=True), file.stat().st_size

        def fits(unpacked: int) -> None:
            share.take(archive, max(archive, unpacked))

        yield replace(stack.enter_context(_contents(copy, fits)), share=share)


@contextlib.contextmanager
def _downloaded(
    uri: str, unfinished: Path, get: Get, share: Share, is_wanted: Callable[[], bool]
) -> Iterator[Path]:
    fits = partial(_take, share, uri)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(downloaded(uri, unfinished, get, fits, is_wanted))
        except DiskFull as failure:
            raise NoRoom(_failed(uri, "model", f": {failure}"), failure.needed) from None
        except DownloadFailed as failure:
            gone = isinstance(failure, NotThere) or bool(_hint(uri))
            error = NotStored if gone else StorageError
            raise error(_failed(uri, "model", f": {failure}")) from None
        yield file


@contextlib.contextmanager
def _contents(copy: LocalCopy, fits: Callable[[int], None]) -> Iterator[LocalCopy]:
    """What an archive holds, without the archive, as both would take as much again; else `copy`.

    At most what `fits` lets in, or what the disk has room for.
    """
    archive = copy.path
    if not (is_archive(archive.name) and archive.is_file()):
        yield copy
        return
    with _folder() as (_, folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            unpack(archive, folder / "model", shutil.disk_usage(folder).free, fits)
        except (ArchiveFault, OSError) as error:
            raise _not_unpacked(archive, folder, error) from None
        if copy.ours:
            archive.unlink()
        yield LocalCopy(folder / "model", ours=True)


def _not_unpacked(archive: Path, folder: Path, error: ArchiveFault | OSError) -> Exception:
    failed = f"the model '{archive.name}' could not be unpacked: "
    if isinstance(error, ArchiveDamaged):
        # The next one that comes may be whole.
        return StorageError(f"{failed}{error}")
    if isinstance(error, ArchiveTooLarge):
        return StorageError(f"{failed}{error}, and {folder.parent} has room for no more")
    if isinstance(error, ArchiveFault):
        return EngineError(f"{failed}{error}")
    if is_full_disk(error):
        return StorageError(f"{failed}the disk of {folder.parent} has no room for it")
    return error


def _take(share: Share, uri: str, size: int, is_all: bool = True) -> None:
    """Of an archive of `size` bytes at least as many are unpacked beside it."""
    share.take(size if is_archive(urlsplit(uri).path) else 0, size, is_all=is_all)


def _stored_bytes(uri: str) -> int:
    """0 where its store does not say."""
    # The drivers of the stores raise what their own libraries do.
    with contextlib.suppress(Exception):
        return int(StorageManager.get_file_size_bytes(uri, silence_errors=True) or 0)
    return 0


def web_get(uri: str) -> Get | None:
    """Asks for the file as the SDK does: its certificates, proxies, substitutions and keys.

    None where it is not on a web server. Raises StorageError for a store that has no driver here.
    """
    try:
        helper = StorageHelper.get(uri)  # type: ignore[no-untyped-call]
    except Exception as error:
        # Drivers raise what their own libraries do, with the address in it.
        raise StorageError(_failed(uri, "model", f": {shown_error(error)}")) from None
    if helper is None or not isinstance(helper._driver, _HttpDriver):
        return None
    # One of its own: that of the SDK asks for minutes before it says that nobody answers.
    container = _HttpDriver(retries=1).get_container(helper._base_url)
    url = helper._canonize_url(uri)

    def get(headers: Mapping[str, str]) -> requests.Response:
        keys = container.get_headers(url) or {}
        answer: requests.Response = container.session.get(
            url, headers={**keys, **headers}, stream=True, timeout=_TIMEOUT_S
        )
        return answer

    return get


@contextlib.contextmanager
def fresh_copy(uri: str, name: str) -> Iterator[LocalCopy]:
    """A download that no earlier one can be taken for: two uploads of one file name share an
    address, and the SDK's cache would give the first one's bytes for the second. An archive comes
    as it was packed."""
    _check(uri, name)
    with _folder() as (context, folder):
        try:
            local = StorageManager.get_local_copy(
                uri, cache_context=context, extract_archive=False, name=name, force_download=True
            )
        except Exception as error:
            # The drivers of the stores raise what their own libraries do, with the address in it.
            raise StorageError(_failed(uri, name, f": {shown_error(error)}")) from None
        if local is None or not Path(local).exists():
            missing = NotStored if _hint(uri) else StorageError
            raise missing(_failed(uri, name))
        yield LocalCopy(Path(local), ours=folder in Path(local).parents)


@contextlib.contextmanager
def _folder() -> Iterator[tuple[str, Path]]:
    """The context of a cache of the SDK's, and its folder: for one copy, and gone with it."""
    context = f"engine-{uuid.uuid4().hex}"
    folder = _cache_folder(context)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True)
    held = _lock(folder)
    try:
        yield context, folder
    finally:
        # Only the cache: a file:// address gives the user's own file.
        shutil.rmtree(folder, ignore_errors=True)
        # The SDK keeps each for ever, and has no way to let go of one.
        getattr(CacheManager, "_CacheManager__cache_managers", {}).pop(context, None)
        if held is not None:
            os.close(held)


def clear_copies() -> None:
    """Delete the copies that controllers had in their hands when they were ended."""
    with contextlib.suppress(OSError):
        for folder in _cache_folder(None).parent.iterdir():
            if _CONTEXT.fullmatch(folder.name) and (held := _lock(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


def _cache_folder(context: str | None) -> Path:
    return Path(CacheManager.get_cache_manager(cache_context=context).get_cache_folder())


def _lock(folder: Path) -> int | None:
    """The descriptor of a lock that ends with its process; None where another one has it, or where
    the volume knows none."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _check(uri: str, name: str) -> None:
    """Who cannot read an address says so with all of it."""
    try:
        urlsplit(uri)
    except ValueError:
        raise StorageError(_failed(uri, name)) from None


def _failed(uri: str, name: str, why: str = "") -> str:
    return f"the {name} could not be downloaded from {shown_address(uri)}{_hint(uri) or why}"


def _hint(uri: str) -> str:
    """The SDK's name of an upload that has not ended; clearml-serving may lose the one after it."""
    if uri.endswith(("/uploading_file", "/failed_uploading")):
        return ": its upload did not end, or its address was lost; upload it again"
    return ""
