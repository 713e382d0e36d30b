"""Documents in SQLite: one writer at a time, short transactions, nothing acknowledged is lost."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from typing import TypeVar, cast

import orjson

from transformer_serving.control_plane.half_restored import discard_half_restored
from transformer_serving.control_plane.integrity import DATABASE, SCHEMA, quick_fault

Document = dict[str, object]
Result = TypeVar("Result")

_CLOSED = "the store was closed: the control plane is stopping"

# SQLite's default limit on bound values is far higher; slices keep statements in its cache.
_VALUES_A_STATEMENT = 500

_TABLES = """
CREATE TABLE IF NOT EXISTS project (id TEXT PRIMARY KEY, doc TEXT NOT NULL) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS project_name ON project (json_extract(doc, '$.name'));
CREATE TABLE IF NOT EXISTS task (id TEXT PRIMARY KEY, doc TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS task_project ON task (json_extract(doc, '$.project'));
CREATE INDEX IF NOT EXISTS task_parent ON task (json_extract(doc, '$.parent'));
CREATE INDEX IF NOT EXISTS task_type ON task (json_extract(doc, '$.type'));
CREATE TABLE IF NOT EXISTS model (id TEXT PRIMARY KEY, doc TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS model_project ON model (json_extract(doc, '$.project'));
CREATE INDEX IF NOT EXISTS model_task ON model (json_extract(doc, '$.task'));
CREATE INDEX IF NOT EXISTS model_uri ON model (json_extract(doc, '$.uri'));
CREATE TABLE IF NOT EXISTS event (
    number INTEGER PRIMARY KEY, owner TEXT NOT NULL, type TEXT NOT NULL, identity TEXT UNIQUE,
    metric TEXT NOT NULL, variant TEXT NOT NULL, iter INTEGER NOT NULL, timestamp INTEGER NOT NULL,
    doc TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS unnamed (path TEXT PRIMARY KEY, since REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS event_owner ON event (owner, type, timestamp, number);
"""
_MADE = re.findall(r"IF NOT EXISTS (\w+)", _TABLES)


class Kind(Enum):
    """The document tables."""

    PROJECT = "project"
    TASK = "task"
    MODEL = "model"

    @property
    def table(self) -> str:
        return str(self.value)

    @property
    def indexed(self) -> tuple[str, ...]:
        """The fields that an index can look up."""
        return _INDEXED[self]


_INDEXED: Mapping[Kind, tuple[str, ...]] = {
    Kind.PROJECT: ("name",),
    Kind.TASK: ("project", "parent", "type"),
    Kind.MODEL: ("project", "task", "uri"),
}


class StoreError(RuntimeError):
    """The data folder cannot be used; the message says why."""


class Transaction:
    """What a handler may do between begin and commit; reads see this transaction's writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def each(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        """Row by row, for what may not fit into memory; nothing may be written meanwhile.

        Who leaves early closes it: a statement that is not at its end keeps its connection in the
        past.
        """
        with closing(self._connection.execute(statement, values)) as rows:
            yield from rows

    def execute(self, statement: str, values: Sequence[object] = ()) -> int:
        return self._connection.execute(statement, values).rowcount

    def get(self, kind: Kind, identity: str) -> Document | None:
        found = self.rows(f"SELECT doc FROM {kind.table} WHERE id = ?", (identity,))
        return parsed(found[0][0]) if found else None

    def find(
        self, kind: Kind, exact: Mapping[str, Sequence[str]] | None = None
    ) -> Generator[Document, None, None]:
        """Documents whose indexed fields hold one of the given values; all without any. As `each`
        gives them.
        """
        field, values = _narrowest(kind, exact or {})
        if field is None:
            yield from map(_document_of, self.each(f"SELECT doc FROM {kind.table}"))
            return
        column = "id" if field == "id" else f"json_extract(doc, '$.{field}')"
        for start in range(0, len(values), _VALUES_A_STATEMENT):
            some = values[start : start + _VALUES_A_STATEMENT]
            marks = ",".join("?" * len(some))
            found = self.each(f"SELECT doc FROM {kind.table} WHERE {column} IN ({marks})", some)
            yield from map(_document_of, found)

    def put(self, kind: Kind, document: Document) -> None:
        text = orjson.dumps(document).decode()
        self.execute(
            f"INSERT INTO {kind.table} (id, doc) VALUES (?, ?) "
            "ON CONFLICT (id) DO UPDATE SET doc = excluded.doc",
            (cast(str, document["id"]), text),
        )

    def remove(self, kind: Kind, identity: str) -> bool:
        """With what was reported of it."""
        self.execute("DELETE FROM event WHERE owner = ?", (identity,))
        return self.execute(f"DELETE FROM {kind.table} WHERE id = ?", (identity,)) > 0


class Store:
    """The database of one data folder; a second process on the same folder is refused."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_file = _exclusive(folder / "lock")
        self._path = folder / DATABASE
        self._writing = threading.Lock()
        self._views = threading.Condition()
        self._reading = 0
        self._closed = False
        self._opened: list[sqlite3.Connection] = []
        self._local = threading.local()
        try:
            discard_half_restored(folder)
            why = quick_fault(folder)
            if why is not None:
                raise StoreError(why)
            self._writer = self._open()
            self._make_tables()
        except BaseException:
            os.close(self._lock_file)
            raise

    def _make_tables(self) -> None:
        """Nothing is written where all are there: a disk that is full keeps nobody from reading."""
        there = {str(name) for (name,) in self._writer.execute("SELECT name FROM sqlite_master")}
        (schema,) = self._writer.execute("PRAGMA user_version").fetchone()
        if schema != SCHEMA or not there.issuperset(_MADE):
            self._writer.executescript(f"{_TABLES}PRAGMA user_version = {SCHEMA};")

    def read(self, work: Callable[[Transaction], Result]) -> Result:
        with self.reading() as transaction:
            return work(transaction)

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A view of one moment: statements inside do not see later commits."""
        with self._open_for_views():
            connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = self._open()
            connection.execute("BEGIN")
            try:
                yield Transaction(connection)
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        """All or nothing; when this returns, the commit is on the disk."""
        with self._writing:
            if self._closed:
                raise StoreError(_CLOSED)
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(self._writer)
                self._writer.execute("COMMIT")
            except BaseException:
                # On a full disk SQLite has done so itself; a second time would hide the cause.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Waits for what other threads read and write; nothing can begin after it.

        SQLite ends the process where a connection is closed under a statement of another thread.
        """
        with self._writing, self._views:
            if self._closed:
                return
            self._closed = True
            self._views.wait_for(lambda: self._reading == 0)
            for connection in self._opened:
                connection.close()
            os.close(self._lock_file)

    @contextmanager
    def _open_for_views(self) -> Iterator[None]:
        with self._views:
            if self._closed:
                raise StoreError(_CLOSED)
            self._reading += 1
        try:
            yield
        finally:
            with self._views:
                self._reading -= 1
                self._views.notify_all()

    def _open(self) -> sqlite3.Connection:
        # Autocommit mode: begin and commit are written out above. Connections move between the
        # pool's threads only at close, hence check_same_thread.
        connection = sqlite3.connect(
            self._path, timeout=30, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL syncs the log at every commit, so a power cut keeps what was acknowledged as well.
        connection.execute("PRAGMA synchronous = FULL")
        self._opened.append(connection)
        return connection


def _narrowest(kind: Kind, exact: Mapping[str, Sequence[str]]) -> tuple[str | None, list[str]]:
    usable = [(f, list(dict.fromkeys(v))) for f, v in exact.items() if f in ("id", *kind.indexed)]
    return min(usable, key=lambda pair: len(pair[1])) if usable else (None, [])


def parsed(text: object) -> Document:
    """Of the column `doc`."""
    return cast(Document, orjson.loads(cast(str, text)))


def _document_of(row: tuple[object, ...]) -> Document:
    return parsed(row[0])


def _exclusive(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise StoreError(f"{path.parent} is in use by another control plane: stop it") from error
    return descriptor
