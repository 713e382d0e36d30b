"""Backup and restore of a real control plane's data, and what a damaged one is called."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.control_plane.conftest import ACCESS_KEY, SECRET_KEY
from tests.control_plane.test_auth import basic
from tests.free_ports import free_port
from tests.small_disk import fill, small_disk
from transformer_serving.contract.replacement import sync
from transformer_serving.control_plane import integrity
from transformer_serving.control_plane.auth import Authority
from transformer_serving.control_plane.files.store import FileStore
from transformer_serving.control_plane.half_restored import beside
from transformer_serving.control_plane.integrity import DATABASE, SCHEMA, file_damage
from transformer_serving.control_plane.settings import ControlPlaneSettings
from transformer_serving.control_plane.store import Kind, Store, StoreError
from transformer_serving.desk.doctor.control_plane import check_data
from transformer_serving.desk.doctor.finding import FAILURE
from transformer_serving.desk.doctor.subject import Subject
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import backup_file, health, stack
from transformer_serving.desk.local.backup import _exchange, _restore_record, backup, restore
from transformer_serving.desk.local.parts import BY_NAME, control_plane_data
from transformer_serving.desk.local.record import Ports, StackRecord, load_record, save_record
from transformer_serving.desk.local.supervision import Process

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


def test_what_is_no_file_is_left_out(state: Path, tmp_path: Path) -> None:
    """Somebody put it there by hand: the store gives it to nobody, and a restore refuses it."""
    filled(state).close()
    folder = control_plane_data(state) / "files" / "a"
    (folder / "link.onnx").symlink_to("model.onnx")
    (folder / "lost").symlink_to("nowhere")
    (folder / "folder").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    assert backup(state, tmp_path / "b.tar")["files"] == 3
    restore(state, tmp_path / "b.tar")
    assert [path.name for path in folder.iterdir()] == ["model.onnx"]


def test_who_is_told_of_alerts_is_in_it(state: Path, tmp_path: Path) -> None:
    """Made once, and changed by hand: what is there at a restore is kept."""
    filled(state).close()
    yours = state / "monitoring" / "alertmanager.yaml"
    backup(state, tmp_path / "without.tar")
    yours.parent.mkdir()
    yours.write_text("receivers: [of then]\n")
    backup(state, tmp_path / "b.tar")
    yours.write_text("receivers: [of now]\n")
    kept = Path(restore(state, tmp_path / "b.tar")["kept"])
    assert yours.read_text() == "receivers: [of then]\n"
    assert yours.stat().st_mode & 0o777 == 0o600
    assert (kept / yours.name).read_text() == "receivers: [of now]\n"
    assert not (control_plane_data(state) / yours.name).exists()
    restore(tmp_path / "other", tmp_path / "b.tar")
    assert (tmp_path / "other/monitoring/alertmanager.yaml").read_text() == yours.read_text()
    # One of an older kit, or of a stack that nobody watches.
    others = tmp_path / "third/monitoring/alertmanager.yaml"
    others.parent.mkdir(parents=True)
    others.write_text("receivers: [of others]\n")
    restore(tmp_path / "third", tmp_path / "without.tar")
    assert others.read_text() == "receivers: [of others]\n"
    restore(tmp_path / "fourth", tmp_path / "without.tar")
    assert not (tmp_path / "fourth/monitoring").exists()


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


# A restore whose process is gone once the backup lies unpacked, or its folder is in its place.
KILLED = """
import os, signal, sys
from pathlib import Path
from transformer_serving.desk.local import {module}
{module}.{step} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from transformer_serving.desk.local.backup import restore
restore(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.parametrize("next_one", ["a restore", "a start"])
def test_what_a_killed_restore_left_is_named_as_it_is_and_goes(
    state: Path, tmp_path: Path, next_one: str
) -> None:
    filled(state).close()
    backup(state, tmp_path / "b.tar")
    data = control_plane_data(state)
    script = KILLED.format(module="backup_file", step="stored_record")
    command = [sys.executable, "-c", script, str(state), str(tmp_path / "b.tar")]
    done = subprocess.run(command, check=False, env=os.environ | {"PYTHONPATH": os.getcwd()})
    assert done.returncode == -signal.SIGKILL
    (left,) = state.glob("control-plane.*")
    assert (left / DATABASE).exists()
    assert left.name.startswith("control-plane.restoring-")
    if next_one == "a start":
        assert tasks(state) == 500
        assert not list(state.glob("control-plane.*"))
    else:
        kept = Path(restore(state, tmp_path / "b.tar")["kept"])
        assert kept.name.startswith("control-plane.before-")
        assert list(state.glob("control-plane.*")) == [kept]
    assert data.is_dir()


def test_one_that_is_killed_as_it_ends_removes_nothing_of_before(
    state: Path, tmp_path: Path
) -> None:
    """Whichever of the two folders has which name."""
    filled(state).close()
    backup(state, tmp_path / "b.tar")
    store = Store(control_plane_data(state))
    with store.writing() as transaction:
        transaction.remove(Kind.TASK, "t0")
    store.close()
    script = KILLED.format(module="backup", step="_restore_record")
    command = [sys.executable, "-c", script, str(state), str(tmp_path / "b.tar")]
    done = subprocess.run(command, check=False, env=os.environ | {"PYTHONPATH": os.getcwd()})
    assert done.returncode == -signal.SIGKILL
    assert tasks(state) == 500
    (kept,) = state.glob("control-plane.*")
    with closing(sqlite3.connect(kept / DATABASE)) as database:
        assert database.execute("SELECT count(*) FROM task").fetchone() == (499,)


@pytest.mark.parametrize("inside", ["other", "other/folder", "other/folder/deep"])
def test_what_is_not_restored_leaves_no_folder_behind(tmp_path: Path, inside: str) -> None:
    (tmp_path / "bad.tar").write_bytes(b"no tar at all")
    with pytest.raises(Failure, match=r"bad\.tar"):
        restore(tmp_path / inside, tmp_path / "bad.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.tar"]


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    (tmp_path / "bad.tar").write_bytes(b"no tar at all")
    (tmp_path / "other").mkdir()
    with pytest.raises(Failure, match=r"bad\.tar"):
        restore(tmp_path / "other", tmp_path / "bad.tar")
    assert list((tmp_path / "other").iterdir()) == []


@pytest.fixture(params=["its own filters", "none before 3.11.4"])
def filters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """tarfile as this Python has it, and as that of Debian 12."""
    if request.param.startswith("none"):
        whole = tarfile.TarFile.extractall

        def extractall(archive: tarfile.TarFile, path: Path, members: Any = None) -> None:
            whole(archive, path, members, filter="fully_trusted")

        monkeypatch.delattr(tarfile, "data_filter")
        monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)


@pytest.mark.usefixtures("filters")
def test_any_python_restores(state: Path, tmp_path: Path) -> None:
    filled(state).close()
    data = control_plane_data(state)
    (data / "files/b").mkdir()
    # In the tar it is a link to the other name's file.
    (data / "files/b/model.onnx").hardlink_to(data / "files/a/model.onnx")
    backup(state, tmp_path / "b.tar")
    restore(tmp_path / "other", tmp_path / "b.tar")
    assert tasks(tmp_path / "other") == 500
    restored = control_plane_data(tmp_path / "other") / "files/b/model.onnx"
    assert restored.read_bytes() == b"weights"
    # From a pipe, too, as a container does.
    (tmp_path / "piped").mkdir()
    with subprocess.Popen(["cat", tmp_path / "b.tar"], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        assert backup_file.unpack(cat.stdout, tmp_path / "piped") == load_record(state)
    assert (tmp_path / "piped/files/b/model.onnx").read_bytes() == b"weights"


@pytest.mark.usefixtures("filters")
@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_backup_does_not_write_outside(state: Path, tmp_path: Path, kind: bytes) -> None:
    """Nor does it link there."""
    bad, named = tmp_path / "bad.tar", tarfile.TarInfo("a")
    if kind == tarfile.REGTYPE:
        named.name = "../outside"
    named.type, named.linkname = kind, "../../outside"
    with tarfile.open(bad, "w") as archive:
        archive.addfile(named)
    with pytest.raises(Failure, match=f"not a whole backup: '{named.name}' in it is no file"):
        restore(state, bad)
    assert not (state / "outside").exists()


def long_way_out(bad: Path) -> None:
    """Links to "../victim" for whom tarfile's filter takes them to be inside: the way through them
    is longer than a path may be, so that it is not looked at to its end.
    """
    part, way, shorts = "d" * 247, "", "abcdefghijklmnop"
    rows: list[tuple[str, bytes, str]] = []
    for short in shorts:
        rows += [(f"{way}{part}", tarfile.DIRTYPE, ""), (f"{way}{short}", tarfile.SYMTYPE, part)]
        way += f"{part}/"
    deep = f"{'/'.join(shorts)}/{'l' * 254}"
    rows += [
        (deep, tarfile.SYMTYPE, "../" * len(shorts)),
        ("out", tarfile.SYMTYPE, f"{deep}/.."),
        ("second-name", tarfile.LNKTYPE, "out/victim"),
        ("second-name", tarfile.REGTYPE, ""),
    ]
    with tarfile.open(bad, "w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, link in rows:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, link
            archive.addfile(member)


@pytest.mark.usefixtures("filters")
def test_what_gets_by_tarfiles_own_filter_does_not_write_outside(
    state: Path, tmp_path: Path
) -> None:
    """CVE-2025-4517; of a file and of a pipe, as a container reads it."""
    victim, bad = state / "victim", tmp_path / "bad.tar"
    victim.write_text("precious")
    long_way_out(bad)
    (state / "piped").mkdir()
    with pytest.raises(Failure) as refused:
        restore(state, bad)
    assert victim.read_text() == "precious"
    with bad.open("rb") as pipe, pytest.raises(Failure, match="not a whole backup"):
        backup_file.unpack(pipe, state / "piped")
    assert "not a whole backup" in str(refused.value)
    assert victim.read_text() == "precious"
    assert list((state / "piped").iterdir()) == [state / "piped" / ("d" * 247)]


@pytest.mark.parametrize("manifest", ["[]", "{}", '{"format": null, "sha256": {}}'])
def test_what_has_another_manifest_is_no_backup(state: Path, tmp_path: Path, manifest: str) -> None:
    (tmp_path / "backup.json").write_text(manifest)
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        archive.add(tmp_path / "backup.json", "backup.json")
    with pytest.raises(Failure, match="not a whole backup"):
        restore(state, tmp_path / "bad.tar")


def test_a_pipe_stays_what_it_is(state: Path, tmp_path: Path) -> None:
    """Also by its name in /dev or /proc, as of a pipe that the shell made."""
    filled(state).close()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read, write = os.pipe()
    try:
        for target in (pipe, Path(f"/dev/fd/{write}")):
            with pytest.raises(Failure, match="is no regular file") as refused:
                backup(state, target)
            assert refused.value.exit_code == 2
    finally:
        os.close(read)
        os.close(write)
    assert pipe.is_fifo()


def test_a_link_leads_to_where_the_backup_is_put(state: Path, tmp_path: Path) -> None:
    """To one that is there already, and to one that is not yet."""
    filled(state).close()
    link, there = tmp_path / "b.tar", tmp_path / "disk/b.tar"
    there.parent.mkdir()
    link.symlink_to(there)
    for _ in range(2):
        assert backup(state, link)["bytes"] == there.stat().st_size
        assert link.is_symlink()
        assert not there.is_symlink()


BACKUP = "transformer_serving.desk.local.backup"
NO_SPACE = "no space is left on the disk of .*; free some and try again"


def test_without_room_for_the_file_the_last_backup_stays(state: Path, tmp_path: Path) -> None:
    filled(state).close()
    with small_disk(tmp_path / "disk", 1) as disk:
        backup(state, disk / "b.tar")
        before, filler = (disk / "b.tar").read_bytes(), fill(disk)
        with pytest.raises(Failure, match=f"{NO_SPACE}; no backup was written") as failed:
            backup(state, disk / "b.tar")
        assert str(disk) in str(failed.value)
        assert set(disk.iterdir()) == {disk / "b.tar", filler}
        assert (disk / "b.tar").read_bytes() == before
    assert not list(control_plane_data(state).glob("backup-*"))


def test_without_room_for_the_databases_copy_nothing_is_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        save_record(disk, StackRecord(Ports(), ACCESS_KEY, SECRET_KEY, "the-service"))
        # Served, as it is when its disk fills up.
        with closing(filled(disk)):
            filler = fill(disk)
            with pytest.raises(Failure, match=f"{NO_SPACE}; no backup was written"):
                backup(disk, tmp_path / "b.tar")
            assert not (tmp_path / "b.tar").exists()
            assert not list(control_plane_data(disk).glob("backup-*"))
            filler.unlink()
        assert tasks(disk) == 500


def test_without_room_a_good_backup_is_not_called_bad(state: Path, tmp_path: Path) -> None:
    filled(state).close()
    backup(state, tmp_path / "b.tar")
    with small_disk(tmp_path / "disk", 1) as disk:
        save_record(disk, StackRecord(Ports(), ACCESS_KEY, SECRET_KEY, "the-service"))
        filled(disk).close()
        before, filler = set(disk.iterdir()), fill(disk)
        with pytest.raises(Failure, match=f"{NO_SPACE}; nothing was restored"):
            restore(disk, tmp_path / "b.tar")
        assert set(disk.iterdir()) == {*before, filler}
        filler.unlink()
        assert tasks(disk) == 500


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def older(state: Path, tmp_path: Path) -> Path:
    """A backup of the stack, which has one task less by now: 499."""
    store = filled(state)
    backup(state, tmp_path / "b.tar")
    with store.writing() as transaction:
        transaction.remove(Kind.TASK, "t0")
    store.close()
    return tmp_path / "b.tar"


def test_without_room_for_its_record_the_data_is_as_it_was(
    state: Path, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{BACKUP}.save_record", full)
    with pytest.raises(Failure, match=f"{NO_SPACE}; nothing was restored"):
        restore(state, older)
    assert tasks(state) == 499
    assert not list(state.glob("control-plane.*"))


def test_data_that_cannot_be_put_back_is_kept_and_named(
    state: Path, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanged: list[Path] = []

    def exchange_once(data: Path, new: Path) -> None:
        if exchanged:
            raise Failure(f"{data} cannot be exchanged: Input/output error")
        exchanged.append(new)
        _exchange(data, new)

    monkeypatch.setattr(f"{BACKUP}._exchange", exchange_once)
    monkeypatch.setattr(f"{BACKUP}.save_record", full)
    with pytest.raises(Failure, match="No space .* cannot be exchanged: Input/output") as failed:
        restore(state, older)
    (kept,) = state.glob("control-plane.*")
    assert f"what was there before is in {kept}: rename both by hand" in str(failed.value)
    assert tasks(state) == 500
    control_plane_data(state).rename(state / "restored")
    kept.rename(control_plane_data(state))
    assert tasks(state) == 499


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.EXDEV], ids=errno.errorcode.get)
def test_where_folders_cannot_be_exchanged_the_way_on_is_named(
    state: Path, older: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """As on NFS; the data are as they were."""

    class System:
        def renameat2(self, *_: object) -> int:
            ctypes.set_errno(code)
            return -1

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: System())
    said = "its file system cannot exchange two folders, .* --state into a folder on another one"
    with pytest.raises(Failure, match=said):
        restore(state, older)
    assert tasks(state) == 499
    assert not list(state.glob("control-plane.*"))


@pytest.mark.parametrize("exchanged", [False, True])
def test_ended_at_the_exchange_the_data_is_as_it_was(
    state: Path, older: Path, monkeypatch: pytest.MonkeyPatch, exchanged: bool
) -> None:
    """What ends it says not whether the folders have changed names by then."""
    handlers: list[object] = []

    def ended(data: Path, new: Path) -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))
        if exchanged:
            _exchange(data, new)
        if len(handlers) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(f"{BACKUP}._exchange", ended)
    with pytest.raises(KeyboardInterrupt):
        restore(state, older)
    assert tasks(state) == 499
    assert not list(state.glob("control-plane.*"))
    # Nor does a second Ctrl-C end the way back.
    assert handlers == [signal.SIG_IGN] * (2 if exchanged else 1)


def test_nothing_ends_it_between_the_data_and_its_record(
    state: Path, older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(state: Path, stored: StackRecord) -> None:
        _restore_record(state, stored)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(f"{BACKUP}._restore_record", ended)
    try:
        restore(state, older)
    except KeyboardInterrupt:
        pytest.fail("the data is of before, and the record is not")
    assert tasks(state) == 500


def test_what_cannot_be_written_or_read_is_told(state: Path, tmp_path: Path) -> None:
    filled(state).close()
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match="file cannot be used: .*; no backup was written"):
        backup(state, tmp_path / "file" / "b.tar")
    with pytest.raises(Failure, match=f"{tmp_path} cannot be unpacked: Is a directory"):
        restore(state, tmp_path)


def test_a_newer_kits_backup_is_refused(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(state).close()
    with monkeypatch.context() as newer:
        newer.setattr("transformer_serving.desk.local.backup_file._FORMAT", 2)
        backup(state, tmp_path / "b.tar")
    with pytest.raises(Failure, match=r"was made by a newer kit \(.+\); install that one"):
        restore(state, tmp_path / "b.tar")
    assert not list(state.glob("control-plane.*"))


def test_a_token_of_before_is_as_good_after_a_restore(state: Path, tmp_path: Path) -> None:
    filled(state).close()
    settings = ControlPlaneSettings(control_plane_data(state), ACCESS_KEY, SECRET_KEY)
    token = Authority(settings).login(basic(ACCESS_KEY, SECRET_KEY), "")
    backup(state, tmp_path / "b.tar")
    restore(state, tmp_path / "b.tar")
    Authority(settings).check(f"Bearer {token}")


@pytest.mark.parametrize("page", [0, 10])
def test_damage_is_told_with_the_fix(state: Path, tmp_path: Path, page: int) -> None:
    filled(state).close()
    backup(state, tmp_path / "b.tar")
    damage(state, page)
    named = f"--state {shlex.quote(str(state))}"
    fix = f"transformer-serving down {named}, then transformer-serving restore FILE {named}"
    with pytest.raises(StoreError, match=rf"is damaged; lost: .*{re.escape(fix)}"):
        Store(control_plane_data(state))
    with pytest.raises(Failure, match=re.escape(fix)):
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


def test_a_large_database_is_served_first_and_looked_at_then(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for the control plane does not wait for each page: it would be ended as hung."""
    filled(state).close()
    damage(state)
    data = control_plane_data(state)
    monkeypatch.setattr(integrity, "QUICK_BYTES", 4096)
    Store(data).close()
    assert health.data_fault(state) is None
    assert "is damaged; lost: " in str(integrity.fault(data))
    script = (
        "from transformer_serving.control_plane import __main__, integrity\n"
        "integrity.QUICK_BYTES = 4096\n__main__.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, f"--data={data}", f"--port={free_port()}"],
        env=os.environ
        | {"TRANSFORMER_SERVING_ACCESS_KEY": ACCESS_KEY}
        | {"TRANSFORMER_SERVING_SECRET_KEY": SECRET_KEY},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "is damaged; lost: " in done.stderr
    # It is not served again, nor restarted for ever: what was found stands beside it.
    assert "is damaged; lost: " in str(health.data_fault(state))
    with pytest.raises(StoreError, match="is damaged; lost: "):
        Store(data)
    [note] = data.glob("*.damaged")
    assert str(note) in str(health.data_fault(state))
    note.unlink()
    Store(data).close()


def test_on_a_full_disk_no_note_is_left_half_written(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2) as disk:
        filled(disk).close()
        damage(disk)
        data = control_plane_data(disk)
        with closing(sqlite3.connect(data / DATABASE)) as served:
            served.execute("PRAGMA user_version").fetchone()
            fill(disk)
            assert "is damaged; lost: " in str(integrity.found_damage(data))
        # It is looked for, and found, again.
        assert integrity.noted(data) is None
        assert not list(data.glob("*.damaged*"))


def test_an_empty_note_says_the_fix_too(state: Path) -> None:
    """Its disk was full, or the machine went down, as it was written."""
    filled(state).close()
    data = control_plane_data(state)
    note = integrity.note_of(data)
    note.touch()
    with pytest.raises(StoreError, match=r"is damaged; lost: .* restore FILE .*; .*\.damaged"):
        Store(data)
    assert str(note) in str(health.data_fault(state))


def test_what_cannot_be_read_now_ends_nothing(state: Path) -> None:
    filled(state).close()
    data = control_plane_data(state)
    assert integrity.found_damage(data) is None
    (data / DATABASE).unlink()
    (data / DATABASE).mkdir()
    assert integrity.found_damage(data) is None
    assert not list(data.glob("*.damaged"))


def test_the_pages_of_one_that_is_served_are_left_to_what_serves_it(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(state).close()
    monkeypatch.setattr(health, "data_fault", lambda _: pytest.fail("every page was looked at"))
    runs = Process("control-plane", "RUNNING", os.getpid(), 1.0)
    record = StackRecord(Ports(control_plane=9), "a", "b")
    told = health.part_status(BY_NAME["control-plane"], state, record, runs)
    assert told.health == "does not answer"


def test_what_cannot_be_read_now_is_a_reason(state: Path) -> None:
    """A full disk, a busy one: no traceback, and no word of damage."""
    filled(state).close()
    data = control_plane_data(state)
    # SQLite's own error for what its disk does not give.
    (data / DATABASE).unlink()
    (data / DATABASE).mkdir()
    told = str(integrity.fault(data))
    assert "cannot be read now: disk I/O error" in told
    assert "see that its disk has room" in told
    with pytest.raises(Failure, match="cannot be read now"):
        stack.start(state, None, lambda _: None)
    assert (
        "cannot be read now"
        in health.all_parts(state, StackRecord(Ports(), "a", "b"), {})[0].health
    )
    (damaged,) = file_damage(data)
    assert "its models cannot be listed" in str(damaged)
    (said,) = check_data(Subject(state, {}))
    assert (said.status, said.fix) == (FAILURE, integrity.READABLE)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        (f"{OWN}a/uploading_file", None),
        (f"{OWN}failed_uploading", None),
        ("http://[", None),
        (f"{OWN}a/../b", "no file can have this name"),
        (OWN, "no file can have this name (path is empty)"),
        (f"{OWN}a/model.onnx/below", "it cannot be read (NotADirectoryError)"),
    ],
)
def test_models_without_a_file_of_their_own(state: Path, uri: str, said: str | None) -> None:
    """While a model is uploaded, and where that did not succeed, its address is a placeholder."""
    store = filled(state)
    with store.writing() as transaction:
        transaction.put(Kind.MODEL, {"id": "n", "name": "two", "uri": uri})
    store.close()
    told = [str(one) for one in file_damage(control_plane_data(state))]
    assert bool(told) == (said is not None)
    assert said is None or said in told[0]


def test_writers_go_on_while_the_pages_are_copied(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they write meanwhile is not of the backup's moment."""
    store = filled(state)
    data = control_plane_data(state)
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def open_copy(path: Path, *arguments: Any, **named: Any) -> sqlite3.Connection:
        """The copy's connection is the last that is opened before the pages are read."""
        if str(path).startswith(str(data / "backup-")):
            with store.writing() as transaction:
                transaction.remove(Kind.TASK, "t0")
        return connect(path, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr("transformer_serving.desk.local.stored_data.sqlite3.connect", open_copy)
        store._writer.execute("PRAGMA busy_timeout = 0")
        backup(state, tmp_path / "b.tar")
    store.close()
    assert tasks(state) == 499
    restore(state, tmp_path / "b.tar")
    assert tasks(state) == 500


def test_a_backup_has_no_room_for_what_was_deleted(state: Path, tmp_path: Path) -> None:
    store = filled(state)
    with store.writing() as transaction:
        for number in range(500):
            transaction.remove(Kind.TASK, f"t{number}")
    store.close()
    before = (control_plane_data(state) / DATABASE).stat().st_size
    backup(state, tmp_path / "b.tar")
    restore(state, tmp_path / "b.tar")
    assert (control_plane_data(state) / DATABASE).stat().st_size < before


@pytest.mark.parametrize("name", ["C#", "why?", "a%20b", "100%"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    """In an address of SQLite '#' and '?' end the path, and '%20' is a blank."""
    state = tmp_path / name
    save_record(state, StackRecord(Ports(), ACCESS_KEY, SECRET_KEY, "the-service"))
    filled(state).close()
    data = control_plane_data(state)
    assert integrity.fault(data) is None
    assert list(file_damage(data)) == []
    file = tmp_path / "backup"
    backup(state, file)
    damage(state)
    assert "is damaged" in str(integrity.fault(data))
    restore(state, file)
    assert integrity.fault(data) is None
    assert tasks(state) == 500
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "backup"])


def test_what_is_restored_is_on_the_disk_before_the_old_data_is_exchanged(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(state).close()
    file = tmp_path / "backup"
    backup(state, file)
    data = control_plane_data(state)
    done: list[Path | str] = []

    def synced(path: Path) -> None:
        done.append(path)
        sync(path)

    def exchanged(data: Path, new: Path) -> None:
        done.append("exchange")
        _exchange(data, new)

    for module in (BACKUP, "transformer_serving.desk.local.stored_data"):
        monkeypatch.setattr(f"{module}.sync", synced)
    monkeypatch.setattr("transformer_serving.desk.local.backup._exchange", exchanged)
    kept = Path(restore(state, file)["kept"])
    before, after = done[: done.index("exchange")], done[done.index("exchange") + 1 :]
    new = beside(data, kept.name.removeprefix("control-plane.before-"))
    restored = {new / path.relative_to(data) for path in data.rglob("*")} | {new}
    lock = {new / "lock", new / "token.secret"}
    assert restored - lock <= set(before)
    assert after == [data.parent]
