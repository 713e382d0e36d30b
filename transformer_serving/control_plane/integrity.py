"""Whether the database can be trusted, and what is lost where it cannot.

Tested by tests/local/test_backup.py.
"""

from __future__ import annotations

import os
import sqlite3
import zipfile
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.identity import DAMAGED_ARCHIVE
from transformer_serving.contract.replacement import replace_file
from transformer_serving.contract.stack_line import stack_line
from transformer_serving.control_plane.addresses import own_path
from transformer_serving.control_plane.errors import ApiError
from transformer_serving.control_plane.file_path import places

DATABASE = "control_plane.sqlite3"
# Counts up with every change that an older kit could not work with. 0: before it was counted.
SCHEMA = 1
# Which of the three it is: compose and the chart give it to the control plane's container alone,
# and Kubernetes the other one to every pod.
IN_CONTAINER, _IN_POD = "TRANSFORMER_SERVING_CONTROL_PLANE_URL", "KUBERNETES_SERVICE_HOST"
_COMPOSE = "docker compose -f compose/compose.yaml --profile local"
READABLE = "see that its disk has room and that this user may read and write its folder"
# A look at every page of a larger one takes longer than what waits for the control plane.
QUICK_BYTES = 256 << 20
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
# ClearML's SDK names these while it uploads a model, and after it could not.
_NO_FILE = ("uploading_file", "failed_uploading")
_TABLES = ("project", "task", "model", "event")


@dataclass(frozen=True)
class Damage:
    """What is wrong with one file of the data folder, and what is lost by it."""

    file: str
    lost: str

    def __str__(self) -> str:
        return f"{self.file} is damaged: {self.lost}"


def to_stop() -> str:
    """What ends the control plane where this runs, so that a backup can be put back."""
    if not os.environ.get(IN_CONTAINER):
        return "transformer-serving down"
    if os.environ.get(_IN_POD):
        return "helm upgrade with --set local.restoring=true (docs/kubernetes.md, Day two)"
    return f"{_COMPOSE} stop control-plane"


def _to_restore(folder: Path) -> str:
    if not os.environ.get(IN_CONTAINER):
        state = folder.parent
        return f"{stack_line('down', state)}, then {stack_line('restore FILE', state)}"
    if os.environ.get(_IN_POD):
        return (
            f"{to_stop()}, then kubectl exec -i POD -- python3 -m "
            "transformer_serving.desk.local.container restore < FILE"
        )
    run = f"{_COMPOSE} run --rm -T --no-deps control-plane restore < FILE"
    # Of the image that the kit's version names, without: maybe another one than that which runs.
    tagged = "with --env-file where that has an image tag"
    return f"{to_stop()}, then {run}, {tagged} (docs/compose.md, A backup of the control plane)"


def fix(folder: Path) -> str:
    """What to do where the data in the folder is damaged, by the commands that reach it where this
    runs."""
    return f"restore the last backup: {_to_restore(folder)}"


def fault(folder: Path, *, most_bytes: int | None = None) -> str | None:
    """Why this kit cannot serve the data, with the fix; None where it can.

    Looks at every page, as SQLite's quick_check does, also while the control plane serves; of a
    database above `most_bytes` only at its schema.
    """
    path = folder / DATABASE
    try:
        if not path.exists():
            return None
        whole = most_bytes is None or path.stat().st_size <= most_bytes
        lost = _lost_by_damage(path) if whole else None
        schema = 0 if lost else schema_of(folder)
    except (OSError, sqlite3.Error) as error:
        lost, schema = _lost_with_all(error), 0
        if lost is None:
            return f"{path} cannot be read now: {error}. Fix: {READABLE}"
    if lost is not None:
        return f"{path} is damaged; lost: {lost}. Fix: {fix(folder)}"
    if schema <= SCHEMA:
        return None
    return (
        f"{path} was written by a newer kit (schema {schema}, this kit knows {SCHEMA}). Fix: "
        "install that kit again, or restore a backup made before the upgrade: "
        f"{_to_restore(folder)}"
    )


def quick_fault(folder: Path) -> str | None:
    """The same without a look at every page of a large database: what one found before is noted."""
    found = noted(folder)
    return fault(folder, most_bytes=QUICK_BYTES) if found is None else found


def found_damage(folder: Path) -> str | None:
    """What a look at every page finds lost, noted for the next start; None also where nothing can
    be said of them now."""
    try:
        lost = _lost_by_damage(folder / DATABASE)
    except (OSError, sqlite3.Error) as error:
        lost = _lost_with_all(error)
    if lost is None:
        return None
    why = _to_note(folder, lost)
    # Whole or not at all: on a full disk it is found again.
    with suppress(OSError):
        replace_file(note_of(folder), why, durable=True)
    return why


def _to_note(folder: Path, lost: str) -> str:
    repaired = f"or repair it and delete {note_of(folder)}"
    return f"{folder / DATABASE} is damaged; lost: {lost}. Fix: {fix(folder)}; {repaired}"


def _lost_with_all(error: Exception) -> str | None:
    """None for what says nothing of its pages: it is busy, or not to be opened."""
    is_damage = getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED
    return f"everything in it ({error})" if is_damage else None


def noted(folder: Path) -> str | None:
    """Why nothing of the folder is served, where that was found before."""
    with suppress(OSError):
        # One that a full disk has cut to nothing was written for a reason, too.
        said = note_of(folder).read_text("utf-8", "replace").strip()
        return said or _to_note(folder, "what its note, which is empty, no longer says")
    return None


def note_of(folder: Path) -> Path:
    """Where it stands why nothing of the folder is served."""
    return folder / f"{DATABASE}.damaged"


def is_large(folder: Path) -> bool:
    """Whether `quick_fault` leaves its pages alone."""
    path = folder / DATABASE
    return path.exists() and path.stat().st_size > QUICK_BYTES


def schema_of(folder: Path) -> int:
    """The schema's number; raises sqlite3.Error where it cannot be read."""
    with closing(_reading(folder / DATABASE)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def file_damage(folder: Path) -> Iterator[Damage]:
    """Models whose stored file is missing or, as a zip, not what was stored."""
    try:
        with closing(_reading(folder / DATABASE)) as connection:
            rows = connection.execute(
                "SELECT json_extract(doc, '$.name'), json_extract(doc, '$.uri') FROM model"
            ).fetchall()
    except sqlite3.Error as error:
        yield Damage(DATABASE, f"its models cannot be listed ({error})")
        return
    for name, uri in rows:
        path = _own_path(str(uri or ""))
        if path is not None and path.rsplit("/", 1)[-1] not in _NO_FILE:
            why = _fault(folder / "files", path)
            if why:
                yield Damage(f"files/{path.lstrip('/')}", f"{why}; model '{name}' cannot be loaded")


def _own_path(uri: str) -> str | None:
    try:
        return own_path(uri, "")
    except ValueError:  # it is no address at all
        return None


def _fault(files: Path, path: str) -> str:
    try:
        may_be = [files / Path(*names) for names in places(path)]
        file = next((file for file in may_be if file.exists()), may_be[0])
        if file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                broken = archive.testzip()
            return f"{broken} in it is not what was stored" if broken else ""
        return "" if file.stat().st_size else "it is empty"
    except FileNotFoundError:
        return "it is missing"
    except ApiError as error:
        return f"no file can have this name ({error.detail})"
    except (*DAMAGED_ARCHIVE, ValueError) as error:
        return f"it cannot be read ({type(error).__name__})"


def _reading(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)


def _lost_by_damage(path: Path) -> str | None:
    """Raises sqlite3.Error where nothing can be said of its pages, or nothing of it be read."""
    with closing(_reading(path)) as connection:
        try:
            said = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise
            return f"{_lost(connection)} ({error})"
        return None if said == "ok" else f"{_lost(connection)} ({said.splitlines()[-1]})"


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
