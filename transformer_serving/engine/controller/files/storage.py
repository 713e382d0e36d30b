"""Files of the registry, through the ClearML SDK, which begins a broken download anew.

Models on a web server, ClearML's file server first of all, come by a download that goes on.

Tested by tests/engine/test_storage.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests
from clearml.storage import StorageManager
from clearml.storage.cache import CacheManager
from clearml.storage.helper import StorageHelper, _HttpDriver

from transformer_serving.engine.controller.files.download import (
    DiskFull,
    DownloadFailed,
    Get,
    NotThere,
    downloaded,
)
from transformer_serving.engine.controller.files.local_copy import LocalCopy
from transformer_serving.engine.controller.files.room import Share
from transformer_serving.engine.errors import NoRoom, NotStored, StorageError

# To connect, and between two bytes.
_TIMEOUT_S = (30, 30)
# What the SDK unpacks.
_ARCHIVES = (".zip", ".tgz", ".tar.gz")
# The SDK's cache may be a user's, with other things in it.
_CONTEXT = re.compile("engine-[0-9a-f]{32}")


@contextlib.contextmanager
def model_copy(uri: str, unfinished: Path | None, share: Share) -> Iterator[LocalCopy]:
    """The model's file, or the folder that an archive holds. Raises StorageError, and of it NoRoom
    where the volume of `unfinished` is full.

    `unfinished`: the folder for what has come so far, where one is; `share` of the state's room.
    """
    get = None if unfinished is None else web_get(uri)
    if get is None or unfinished is None:
        if share.room.is_limited:
            _take(share, uri, _stored_bytes(uri))
        with fresh_copy(uri, "model") as copy:
            yield replace(copy, share=share)
        return
    with contextlib.ExitStack() as stack:
        try:
            fits = partial(_take, share, uri)
            file = stack.enter_context(downloaded(uri, unfinished, get, fits))
        except DiskFull as failure:
            raise NoRoom(_failed(uri, "model", f": {failure}"), failure.needed) from None
        except DownloadFailed as failure:
            gone = isinstance(failure, NotThere) or bool(_hint(uri))
            error = NotStored if gone else StorageError
            raise error(_failed(uri, "model", f": {failure}")) from None
        if share.room.is_limited and _is_archive(file):
            size = file.stat().st_size
            share.take(size, max(size, _unpacked_bytes(file)))
        # The SDK unpacks a local file as it does its own copy.
        copy = stack.enter_context(fresh_copy(str(file), "model"))
        if copy.path.is_dir():
            file.unlink()
        yield replace(copy, ours=True, share=share)


def _take(share: Share, uri: str, size: int) -> None:
    """Of an archive of `size` bytes at least as many are unpacked beside it."""
    share.take(size if _is_archive(Path(urlsplit(uri).path)) else 0, size)


def _is_archive(path: Path) -> bool:
    return path.name.lower().endswith(_ARCHIVES)


def _unpacked_bytes(file: Path) -> int:
    """0 where it does not say: a tar file, or one that is damaged."""
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(file) as archive:
        return sum(entry.file_size for entry in archive.infolist())
    return 0


def _stored_bytes(uri: str) -> int:
    """0 where its store does not say."""
    # The drivers of the stores raise what their own libraries do.
    with contextlib.suppress(Exception):
        return int(StorageManager.get_file_size_bytes(uri, silence_errors=True) or 0)
    return 0


def web_get(uri: str) -> Get | None:
    """Asks for the file as the SDK does: its certificates, proxies, substitutions and keys.

    None where it is not on a web server.
    """
    helper = StorageHelper.get(uri)  # type: ignore[no-untyped-call]
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
    address, and the SDK's cache would give the first one's bytes for the second."""
    context = f"engine-{uuid.uuid4().hex}"
    folder = _cache_folder(context)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True)
    held = _lock(folder)
    try:
        local = StorageManager.get_local_copy(
            uri, cache_context=context, extract_archive=True, name=name, force_download=True
        )
        if local is None or not Path(local).exists():
            error = NotStored if _hint(uri) else StorageError
            raise error(_failed(uri, name))
        yield _copy(Path(local), folder, name)
    finally:
        # Only the cache: a file:// address gives the user's own file.
        shutil.rmtree(folder, ignore_errors=True)
        if held is not None:
            os.close(held)


def _copy(local: Path, folder: Path, name: str) -> LocalCopy:
    """What the SDK gave, without the archive that it was in: both would take as much again."""
    if _is_archive(local) and local.is_file():
        # It goes on after a fault with what it could not unpack.
        raise StorageError(
            f"the {name} '{local.name}' could not be unpacked: it is damaged, and to be uploaded "
            f"again, or {folder.parent} has no room for it"
        )
    ours = folder in local.parents
    for archive in folder.iterdir() if ours and local.is_dir() else ():
        if archive.is_file():
            archive.unlink()
    return LocalCopy(local, ours)


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


def _failed(uri: str, name: str, why: str = "") -> str:
    return f"the {name} could not be downloaded from {uri}{_hint(uri) or why}"


def _hint(uri: str) -> str:
    """The SDK's name of an upload that has not ended; clearml-serving may lose the one after it."""
    if uri.endswith(("/uploading_file", "/failed_uploading")):
        return ": its upload did not end, or its address was lost; upload it again"
    return ""
