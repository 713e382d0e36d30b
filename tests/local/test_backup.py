"""Backup and restore of a real control plane's data, and what a damaged one is called."""

from __future__ import annotations

import sqlite3
import tarfile
import threading
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.control_plane.conftest import ACCESS_KEY, SECRET_KEY
from transformer_serving.control_plane.files.store import FileStore
from transformer_serving.control_plane.integrity import DATABASE, SCHEMA, file_damage
from transformer_serving.control_plane.store import Kind, Store, StoreError
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import health, stack
from transformer_serving.desk.local.backup import backup, restore
from transformer_serving.desk.local.parts import control_plane_data
from transformer_serving.desk.local.record import Ports, StackRecord, load_record, save_record

OWN = "transformer-serving-own://files/"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "stack"
    save_record(state, StackRecord(Ports(), ACCESS_KEY, SECRET_KEY, "the-service"))
    return state


def put(data: Path, path: str, content: bytes) -> None:
    files = FileStore(data)
    incoming = files.receive()
    incoming.write(content)
    files.put(incoming, path)


def filled(state: Path) -> Store:
    store = Store(control_plane_data(state))
    put(control_plane_data(state), "a/model.onnx", b"weights")
    with store.writing() as transaction:
        for number in range(500):
            transaction.put(Kind.TASK, {"id": f"t{number}", "name": "a task" * 10})
        transaction.put(Kind.MODEL, {"id": "m", "name": "one", "uri": f"{OWN}a/model.onnx"})
    return store


def tasks(state: Path) -> int:
    store = Store(control_plane_data(state))
    try:
        return store.read(lambda transaction: len(list(transaction.find(Kind.TASK))))
    finally:
        store.close()


def damage(state: Path, page: int = 10, pages: int = 3) -> None:
    path = control_plane_data(state) / DATABASE
    raw = bytearray(path.read_bytes())
    raw[page * 4096 : (page + pages) * 4096] = bytes(pages * 4096)
    path.write_bytes(raw)


def test_there_and_back(state: Path, tmp_path: Path) -> None:
    store = filled(state)
    done = backup(state, tmp_path / "b.tar")
    assert done["files"] == 3
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    with store.writing() as transaction:
        transaction.remove(Kind.TASK, "t0")
    FileStore(control_plane_data(state)).delete("a/model.onnx")
    with pytest.raises(Failure, match="stop it first"):
        restore(state, tmp_path / "b.tar")
    store.close()
    assert tasks(state) == 499
    kept = Path(restore(state, tmp_path / "b.tar")["kept"])
    assert tasks(state) == 500
    assert (control_plane_data(state) / "files/a/model.onnx").read_bytes() == b"weights"
    assert (kept / DATABASE).exists()
    assert not list(control_plane_data(state).glob("backup-*"))


def test_a_backup_is_of_one_moment_while_it_is_written_to(state: Path, tmp_path: Path) -> None:
    """Each model's file is put before its document, as the SDK does: no document lacks its file."""
    store = filled(state)
    files = FileStore(control_plane_data(state))
    ended = threading.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            incoming = files.receive()
            incoming.write(b"%d" % number)
            files.put(incoming, f"b/{number}")
            with store.writing() as transaction:
                document: dict[str, object] = {
                    "id": f"n{number}",
                    "name": "n",
                    "uri": f"{OWN}b/{number}",
                }
                transaction.put(Kind.MODEL, document)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        backups = [tmp_path / f"{number}.tar" for number in range(5)]
        for one in backups:
            backup(state, one)
    finally:
        ended.set()
        writing.join()
    store.close()
    for number, one in enumerate(backups):
        restored = tmp_path / f"restored-{number}"
        restore(restored, one)
        assert not list(file_damage(control_plane_data(restored)))


def test_into_another_folder(state: Path, tmp_path: Path) -> None:
    filled(state).close()
    backup(state, tmp_path / "b.tar")
    restore(tmp_path / "other", tmp_path / "b.tar")
    assert tasks(tmp_path / "other") == 500
    there, here = load_record(tmp_path / "other"), load_record(state)
    assert there is not None
    assert here is not None
    # Two stacks with the same sockets would remove each other's.
    assert there.sockets != here.sockets
    assert replace(there, sockets=here.sockets) == here


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw.replace(b"weights", b"weighed"),
        lambda raw: b"no tar at all",
        lambda raw: b"",
    ],
)
def test_what_is_no_whole_backup_changes_nothing(
    state: Path, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    filled(state).close()
    backup(state, tmp_path / "b.tar")
    bad = tmp_path / "bad.tar"
    bad.write_bytes(spoil((tmp_path / "b.tar").read_bytes()))
    with pytest.raises(Failure, match=r"bad\.tar"):
        restore(state, bad)
    assert tasks(state) == 500
    assert not list(state.glob("control-plane.*"))


def test_a_backup_does_not_write_outside(state: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.tar"
    with tarfile.open(bad, "w") as archive:
        archive.add(__file__, "../outside")
    with pytest.raises(Failure, match="not a whole backup"):
        restore(state, bad)
    assert not (state / "outside").exists()


@pytest.mark.parametrize("page", [0, 10])
def test_damage_is_told_with_the_fix(state: Path, tmp_path: Path, page: int) -> None:
    filled(state).close()
    backup(state, tmp_path / "b.tar")
    damage(state, page)
    with pytest.raises(StoreError, match=r"is damaged; lost: .*transformer-serving restore FILE"):
        Store(control_plane_data(state))
    with pytest.raises(Failure, match="restore FILE"):
        stack.start(state, None, lambda _: None)
    with pytest.raises(Failure, match="nothing to back up"):
        backup(state, tmp_path / "c.tar")
    told = health.all_parts(state, StackRecord(Ports(), "a", "b"), {})[0]
    assert told.name == "control-plane"
    assert "is damaged; lost: " in told.health
    restore(state, tmp_path / "b.tar")
    assert tasks(state) == 500
    assert health.data_fault(state) is None


def test_a_newer_schema_is_refused(state: Path) -> None:
    filled(state).close()
    connection = sqlite3.connect(control_plane_data(state) / DATABASE)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=r"newer kit .* install that kit again"):
        Store(control_plane_data(state))


def test_a_missing_file_is_named_with_its_model(state: Path) -> None:
    filled(state).close()
    data = control_plane_data(state)
    assert not list(file_damage(data))
    (data / "files/a/model.onnx").unlink()
    (told,) = file_damage(data)
    assert str(told) == "files/a/model.onnx is damaged: it is missing; model 'one' cannot be loaded"


def test_a_broken_stream_in_a_stored_bundle_is_named(state: Path) -> None:
    """zipfile lets zlib's own error through, which would end the check for all other files."""
    store = filled(state)
    store.close()
    data = control_plane_data(state)
    path = data / "files/a/model.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.onnx", b"{}" * 400)
    raw = bytearray(path.read_bytes())
    first = raw.index(b"model.onnx") + len("model.onnx")
    raw[first : first + 4] = b"\xff" * 4
    path.write_bytes(raw)
    (data / "files/a/model.onnx").unlink()
    connection = sqlite3.connect(data / DATABASE)
    connection.execute("UPDATE model SET doc = replace(doc, 'model.onnx', 'model.zip')")
    connection.commit()
    connection.close()
    (told,) = file_damage(data)
    assert "model.zip is damaged: it cannot be read (error)" in str(told)
