"""Files that no document names any more: collected a day after that was first seen."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from urllib.parse import unquote

import orjson

from transformer_serving.control_plane.file_path import plain_path
from transformer_serving.control_plane.files.store import FileStore
from transformer_serving.control_plane.store import Store, Transaction

_log = logging.getLogger(__name__)

KEEP_SECONDS = 24 * 3600.0
_ROUND_SECONDS = 3600.0
# An event counts where it holds an address; a line of a log that names a file keeps nothing.
_DOCUMENTS = (
    *(f"SELECT doc FROM {table}" for table in ("project", "task", "model")),
    "SELECT doc FROM event WHERE instr(doc, '://')",
)
# The path of an address. What may stand before it is left out: tried at each letter of a long line
# it took the square of its length.
_PATH = re.compile(r"://[^\s\"'\\<>,;|/?#]*(/[^\s\"'\\<>,;|?#]*)")
# The same with the letters that may end an address in a text but may also stand in one.
_WHOLE_PATH = re.compile(r"://[^\s\"'\\<>,;|/?#]*(/[^\s\"\\<>?#]*)")
# What `plain_path` drops between two names.
_NOTHING_BETWEEN = re.compile(r"/(?:\.?/)+")
# Of documents that are searched in one go.
_LETTERS_AT_ONCE = 1 << 18


class Leftovers:
    """Looks every hour. `clock` gives seconds since the epoch."""

    def __init__(
        self,
        store: Store,
        files: FileStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._files = files
        self._clock = clock

    async def watch(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.collect)
            except Exception as error:
                # The next round may go better; serving does not depend on it.
                _log.error("leftovers were not collected: %s", type(error).__name__)
            await asyncio.sleep(_ROUND_SECONDS)

    def collect(self) -> int:
        """Remember what nobody names, delete what nobody has named for a day; how many were.

        A first look takes no lock. What is to go by it is looked for once more while nothing can be
        written, so a document that names a file at the last moment keeps it.
        """
        before = self._clock() - KEEP_SECONDS
        self._files.discard_left(before)
        # An upload is named only after it, so one of this day is not looked for.
        stored = {path for path, modified in self._files.all() if modified < before}
        with self._store.reading() as transaction:
            unnamed = _unnamed(transaction, stored)
            if not unnamed and not _remembered(transaction):
                return 0
        with self._store.writing() as transaction:
            ripe = self._remember(transaction, unnamed)
            left = _unnamed(transaction, ripe)
            _forget(transaction, ripe - left)
            # In here: what is named from now on finds its file gone before it is written. Uploads
            # ask for no lock of the store, so one may have come under the same path since. None
            # waits for the disk: of thousands that would keep whoever writes for minutes.
            deleted = sum(self._files.delete(path, before) for path in sorted(left))
        if deleted:
            _log.info("collected %d files that no document named for a day", deleted)
        return deleted

    def _remember(self, transaction: Transaction, unnamed: set[str]) -> set[str]:
        """Forget the named, note the others with the time; those of a day ago."""
        now = self._clock()
        since = _remembered(transaction)
        _forget(transaction, since.keys() - unnamed)
        for path in unnamed:
            # A clock that was set back begins again.
            if since.get(path, now + 1) > now:
                transaction.execute(
                    "INSERT OR REPLACE INTO unnamed (path, since) VALUES (?, ?)", (path, now)
                )
        return {path for path in unnamed if since.get(path, now) <= now - KEEP_SECONDS}


def _forget(transaction: Transaction, paths: Set[str]) -> None:
    """Whoever names one keeps it for a whole day again."""
    for path in paths:
        transaction.execute("DELETE FROM unnamed WHERE path = ?", (path,))


def _remembered(transaction: Transaction) -> dict[str, float]:
    rows = transaction.rows("SELECT path, since FROM unnamed")
    return {str(path): float(str(since)) for path, since in rows}


def _unnamed(transaction: Transaction, stored: Set[str]) -> set[str]:
    """Of the stored paths those that stand in no document, nor any folder that holds them.

    Most are found by the addresses that documents hold. One that is not may stand there in a form
    nobody thought of, so the rest is looked for in all text, and kept when it is anywhere.
    """
    left = set(stored)
    kept_by: dict[str, set[str]] = {}
    for path in stored:
        for holder in _holders(path):
            kept_by.setdefault(holder, set()).add(path)
    for text in _texts(transaction) if left else ():
        for found in {*_PATH.findall(text), *_WHOLE_PATH.findall(text)}:
            left -= kept_by.get(plain_path(unquote(found)), set())
            left -= kept_by.get(plain_path(found), set())
        if not left:
            return left
    forms = {path: _forms(path) for path in left}
    for many in _together(_texts(transaction)) if forms else ():
        for path in _found_unquoted(many, forms):
            del forms[path]
    return set(forms)


def _found_unquoted(text: str, forms: Mapping[str, tuple[str, ...]]) -> set[str]:
    """An address may be quoted in part: the SDK leaves a ';' of its last name as it is. So a path
    is looked for where nothing is quoted any more, and one with a '%' of its own in both.
    """
    own = {path: some for path, some in forms.items() if any("%" in form for form in some)}
    return {*_found(unquote(text), forms), *_found(text, own)}


def _found(text: str, forms: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The paths that stand in the text in one of their forms, also with what `plain_path` drops.

    To take that out of a text takes ten times as long as to look for a word in it, so it is done
    only where a path's last name is there at all, with the '/' before it.
    """
    ends = {path: {form[max(form.rfind("/"), 0) :] for form in forms[path]} for path in forms}
    present = {end for end in set().union(*ends.values()) if end in text}
    likely = [path for path, some in ends.items() if some & present]
    if not likely:
        return []
    plain = _NOTHING_BETWEEN.sub("/", text)
    return [path for path in likely if any(form in plain for form in forms[path])]


def _together(texts: Iterator[str]) -> Iterator[str]:
    """Many in one, as each path is looked for in each: none holds the line's end between them."""
    some, letters = [], 0
    for text in texts:
        some.append(text)
        letters += len(text)
        if letters >= _LETTERS_AT_ONCE:
            yield "\n".join(some)
            some, letters = [], 0
    yield "\n".join(some)


def _forms(path: str) -> tuple[str, ...]:
    """As it may stand in JSON: a quote in it as %22 or not. Mostly they are one."""
    plain = plain_path(path)
    names = {path, plain, plain.replace('"', "%22")}
    return tuple({orjson.dumps(name)[1:-1].decode() for name in names} | names)


def _holders(path: str) -> set[str]:
    """The path and every folder that it lies in, as `plain_path` has them."""
    one = Path(plain_path(path))
    return {str(one), *(str(parent) for parent in one.parents if parent != Path())}


def _texts(transaction: Transaction) -> Iterator[str]:
    for statement in _DOCUMENTS:
        for (doc,) in transaction.each(statement):
            yield str(doc)
