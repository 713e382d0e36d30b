"""Whether the database can be trusted, and what is lost where it cannot.

Tested by tests/local/test_backup.py.
"""

from __future__ import annotations

import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.identity import DAMAGED_ARCHIVE
from transformer_serving.control_plane.addresses import own_path
from transformer_serving.control_plane.file_path import path_parts

DATABASE = "control_plane.sqlite3"
# Counts up with every change that an older kit could not work with. 0: before it was counted.
SCHEMA = 1
FIX = "restore the last backup: transformer-serving down, then transformer-serving restore FILE"
_TABLES = ("project", "task", "model", "event")


@dataclass(frozen=True)
class Damage:
    """What is wrong with one file of the data folder, and what is lost by it."""

    file: str
    lost: str

    def __str__(self) -> str:
        return f"{self.file} is damaged: {self.lost}"


def database_damage(folder: Path) -> Damage | None:
    """Looks at every page, as SQLite's quick_check does; also while the control plane serves."""
    path = folder / DATABASE
    if not path.exists():
        return None
    try:
        with closing(_reading(path)) as connection:
            said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
            if said == "ok":
                return None
            return Damage(DATABASE, f"{_lost(connection)} ({said.splitlines()[-1]})")
    except sqlite3.OperationalError as error:
        # Busy or not to be opened says nothing of its pages.
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return None
        return Damage(DATABASE, f"everything in it ({error})")
    except sqlite3.DatabaseError as error:
        return Damage(DATABASE, f"{_lost_of(path)} ({error})")


def fault(folder: Path) -> str | None:
    """Why this kit cannot serve the data, with the fix; None where it can."""
    path = folder / DATABASE
    if not path.exists():
        return None
    damage = database_damage(folder)
    if damage is not None:
        return f"{path} is damaged; lost: {damage.lost}. Fix: {FIX}"
    schema = schema_of(folder)
    if schema <= SCHEMA:
        return None
    return (
        f"{path} was written by a newer kit (schema {schema}, this kit knows {SCHEMA}). Fix: "
        "install that kit again, or restore a backup made before the upgrade: "
        "transformer-serving restore FILE"
    )


def schema_of(folder: Path) -> int:
    """The schema's number; raises sqlite3.Error where it cannot be read."""
    with closing(_reading(folder / DATABASE)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def file_damage(folder: Path) -> Iterator[Damage]:
    """Models whose stored file is missing or, as a zip, not what was stored."""
    with closing(_reading(folder / DATABASE)) as connection:
        rows = connection.execute(
            "SELECT json_extract(doc, '$.name'), json_extract(doc, '$.uri') FROM model"
        ).fetchall()
    for name, uri in rows:
        path = own_path(str(uri or ""), "")
        if path is not None:
            why = _fault(folder / "files" / Path(*path_parts(path)))
            if why:
                yield Damage(f"files/{path.lstrip('/')}", f"{why}; model '{name}' cannot be loaded")


def _fault(file: Path) -> str:
    try:
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                broken = archive.testzip()
            return f"{broken} in it is not what was stored" if broken else ""
        return "" if file.stat().st_size else "it is empty"
    except FileNotFoundError:
        return "it is missing"
    except (*DAMAGED_ARCHIVE, ValueError) as error:
        return f"it cannot be read ({type(error).__name__})"


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)


def _lost_of(path: Path) -> str:
    with closing(_reading(path)) as connection:
        return _lost(connection)


def _lost(connection: sqlite3.Connection) -> str:
    """Which tables cannot be read to their end, and after how many rows."""
    lost = []
    for table in _TABLES:
        read = 0
        try:
            for _ in connection.execute(f"SELECT doc FROM {table} NOT INDEXED"):
                read += 1
        except sqlite3.DatabaseError:
            lost.append(f"{table}s after the first {read}")
    return ", ".join(lost) if lost else "its indexes or free pages; every document can be read"
