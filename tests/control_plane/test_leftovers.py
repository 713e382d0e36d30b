"""What nobody names is collected after a day; what anybody names never is."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from transformer_serving.control_plane.files import leftovers
from transformer_serving.control_plane.files.leftovers import Leftovers
from transformer_serving.control_plane.files.store import FileStore, Incoming
from transformer_serving.control_plane.store import Kind, Store

DAY = 24 * 3600.0
OWN = "transformer-serving-own://files/"


@dataclass
class Data:
    store: Store
    files: FileStore
    folder: Path
    now: float = 1_000_000_000.0

    def leftovers(self) -> Leftovers:
        return Leftovers(self.store, self.files, clock=lambda: self.now)

    def put(self, path: str, age: float = 2 * DAY) -> None:
        incoming = self.files.receive()
        incoming.write(b"x")
        self.files.put(incoming, path)
        os.utime(self.folder / "files" / path, (self.now - age, self.now - age))

    def name(self, identity: str, **fields: object) -> None:
        with self.store.writing() as transaction:
            transaction.put(Kind.MODEL, {"id": identity, **fields})

    @property
    def paths(self) -> set[str]:
        return {path for path, _ in self.files.all()}

    def after_days(self, days: int) -> None:
        for _ in range(days * 2):
            self.leftovers().collect()
            self.now += DAY / 2
        self.leftovers().collect()


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return Data(Store(tmp_path / "data"), FileStore(tmp_path / "data"), tmp_path / "data")


def test_a_removed_models_file_goes_after_a_day(data: Data) -> None:
    data.put("a/m.onnx")
    data.name("m", uri=f"{OWN}a/m.onnx")
    data.after_days(3)
    assert data.paths == {"a/m.onnx"}
    with data.store.writing() as transaction:
        transaction.remove(Kind.MODEL, "m")
    assert data.leftovers().collect() == 0
    data.now += DAY - 60
    assert data.leftovers().collect() == 0
    data.now += 120
    assert data.leftovers().collect() == 1
    assert not data.paths


def test_folders_of_collected_bundles_go_a_day_after_what_was_in_them(data: Data) -> None:
    folders = data.folder / "files"

    def left() -> list[Path]:
        """After a day in which nobody put anything anywhere."""
        data.now += DAY + 60
        for path in (one for one in folders.rglob("*") if one.is_dir()):
            os.utime(path, (data.now - DAY - 1, data.now - DAY - 1))
        data.leftovers().collect()
        return [path.relative_to(folders) for path in sorted(folders.rglob("*"))]

    for number in range(100):
        data.put(f"bundles/{number}/models/m.zip")
    data.put("bundles/kept/m.zip")
    data.name("m", uri=f"{OWN}bundles/kept/m.zip")
    while len(data.paths) > 1:
        left()
    # A removal changes the folder around it: each round takes one more.
    assert [left() for _ in range(3)][-1] == [
        Path("bundles"), Path("bundles/kept"), Path("bundles/kept/m.zip"),
    ]  # fmt: skip


def test_a_folder_that_just_became_empty_stays(data: Data) -> None:
    data.put("bundles/1/m.zip")
    data.files.delete("bundles/1/m.zip")
    data.files.discard_left((data.folder / "files/bundles/1").stat().st_mtime)
    assert (data.folder / "files/bundles/1").is_dir()


def test_an_upload_into_a_folder_that_is_removed_meanwhile_arrives(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.put("bundles/1/old")
    data.files.delete("bundles/1/old")
    move = Incoming.move
    found: list[int] = []

    def late(incoming: Incoming, folder: int, *rest: Any) -> None:
        if not found:
            found.append(folder)
            data.files.discard_left(float("inf"))
        move(incoming, folder, *rest)

    incoming = data.files.receive()
    incoming.write(b"x")
    # Not lost with the folders.
    monkeypatch.setattr(data.files, "_incoming", data.folder / "elsewhere")
    (data.folder / "elsewhere").mkdir()
    monkeypatch.setattr(Incoming, "move", late)
    data.files.put(incoming, "bundles/1/new")
    assert found
    assert data.paths == {"bundles/1/new"}


def test_one_that_is_named_again_begins_again(data: Data) -> None:
    data.put("m")
    data.leftovers().collect()
    data.now += DAY - 60
    data.name("m", uri=f"{OWN}m")
    data.leftovers().collect()
    with data.store.writing() as transaction:
        transaction.remove(Kind.MODEL, "m")
    data.now += 120
    assert data.leftovers().collect() == 0
    assert data.paths == {"m"}


def test_what_just_came_is_left_alone(data: Data) -> None:
    data.put("new", age=60)
    data.leftovers().collect()
    data.now += DAY / 2
    assert data.leftovers().collect() == 0
    assert data.paths == {"new"}


def test_an_upload_in_the_place_of_one_that_is_collected_stays(data: Data) -> None:
    data.put("m")
    data.leftovers().collect()
    data.now += DAY + 60

    def clock() -> float:
        """Asked while nothing can be written, when the list is made and nothing deleted yet."""
        if data.store._writing.locked():
            data.put("m", age=0)
        return data.now

    assert Leftovers(data.store, data.files, clock=clock).collect() == 0
    assert data.paths == {"m"}
    data.now += DAY / 2
    assert data.leftovers().collect() == 0
    assert data.paths == {"m"}


def test_a_clock_that_is_set_back_begins_again(data: Data) -> None:
    data.put("m", age=10 * DAY)
    data.leftovers().collect()
    data.now -= 5 * DAY
    assert data.leftovers().collect() == 0
    data.now += DAY / 2
    assert data.leftovers().collect() == 0
    data.now += DAY
    assert data.leftovers().collect() == 1


NAMES = st.text(alphabet="ab %\"é\\.+#?&;,'|", min_size=1, max_size=6).filter(
    lambda name: name not in (".", "..")
)


# What the SDK, a browser or encodeURI may leave as it is.
IN_PART = "/;,'|"


@given(st.lists(NAMES, min_size=1, max_size=3), st.integers(0, 8))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_document_names_in_any_form_stays(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], form: int
) -> None:
    folder = tmp_path_factory.mktemp("data")
    data = Data(Store(folder), FileStore(folder), folder)
    path = "top/" + "/".join(parts)
    data.put(path)
    data.put("nobody/names/this")
    named = (
        f"{OWN}{quote(path)}", f"http://host:8008/{quote(path)}", f"{OWN}top",
        f"see {OWN}{quote(path)}, and more", f"a,http://h/{quote(path)}|b", path,
        f"{OWN}{quote(path, safe=IN_PART)}", f"see '{OWN}{quote(path, safe=IN_PART)}', and more",
        f"{OWN}{quote(f'top/{parts[0]}', safe=IN_PART)}",
    )[form]  # fmt: skip
    data.name("m", nested={"list": [named]})
    for _ in range(2):
        data.leftovers().collect()
        data.now += DAY + 1
    assert data.paths == {path}
    data.store.close()


@pytest.mark.parametrize(
    "named",
    [
        f"{OWN}top//b%20c/m.onnx",
        f"{OWN}/top/./b%20c//.//m.onnx",
        f"{OWN}top%2F%2Fb%20c/m.onnx",
        "http://host:8008/top//b%20c",
        "http://host:8008/top/x/../m.onnx and top//b c/./m.onnx",
    ],
)
def test_an_address_with_what_the_store_leaves_out_keeps_its_file(data: Data, named: str) -> None:
    data.put("top/b c/m.onnx")
    data.put("nobody/names/this")
    data.name("m", uri=named)
    data.after_days(2)
    assert data.paths == {"top/b c/m.onnx"}


@pytest.mark.parametrize("stored", ['w"q/m.onnx', "w%22q/m.onnx"])
@pytest.mark.parametrize(
    "named",
    [
        f"{OWN}w%2522q/m.onnx",
        f"{OWN}w%22q//m.onnx",
        f"{OWN}w%2522q",
        'text of w"q/m.onnx',
        "text of w%22q/m.onnx",
        "text of w%2522q/m.onnx",
    ],
)
def test_a_quote_and_its_code_keep_one_file(data: Data, stored: str, named: str) -> None:
    """Also where an earlier kit put it."""
    path = data.folder / "files" / stored
    path.parent.mkdir()
    path.write_bytes(b"x")
    os.utime(path, (data.now - 2 * DAY, data.now - 2 * DAY))
    data.put("nobody/names/this")
    data.name("m", uri=named)
    data.after_days(2)
    assert data.paths == {stored}


def test_a_file_of_many_forms_is_found_by_the_address_that_the_sdk_gives_it(data: Data) -> None:
    data.put("My project/t.1/models/a;b.bin")
    data.put("My project/t;2/models/m,n.bin")
    data.put("My project/t.3/models/a;b.bin")
    data.name("1", uri=f"{OWN}My%20project/t.1/models/a;b.bin")
    data.name("2", uri=f"{OWN}My%20project/t;2/models")
    data.after_days(3)
    assert data.paths == {"My project/t.1/models/a;b.bin", "My project/t;2/models/m,n.bin"}


def test_lost_uploads_and_backups_go_too(data: Data) -> None:
    lost, under_way = data.files.receive(), data.files.receive()
    lost.write(b"half")
    under_way.write(b"half")
    left = data.folder / "backup-lost"
    left.mkdir()
    old = data.now - 2 * DAY
    os.utime(left, (old, old))
    first, second = sorted((data.folder / "incoming").iterdir())
    os.utime(first, (old, old))
    os.utime(second, (data.now, data.now))
    data.leftovers().collect()
    assert list((data.folder / "incoming").iterdir()) == [second]
    assert not left.exists()
    lost.discard()
    under_way.discard()


def test_a_long_line_without_an_address_is_read_in_one_go(data: Data) -> None:
    """Letters that might have begun an address: tried at each of them, the look took minutes."""
    data.put("a/m.onnx")
    data.name("m", text="a-" * 2_000_000, uri=f"{OWN}a/m.onnx")
    data.after_days(2)
    assert data.paths == {"a/m.onnx"}


@pytest.mark.parametrize("address", ["http://[", "http://", "see ://x", "http://host"])
def test_an_address_that_is_none_ends_no_look(data: Data, address: str) -> None:
    data.put("a/m.onnx")
    data.name("m", text=address)
    data.after_days(3)
    assert not data.paths


def event(data: Data, identity: str, message: str) -> None:
    with data.store.writing() as transaction:
        transaction.execute(
            "INSERT INTO event (owner, type, identity, metric, variant, iter, timestamp, doc) "
            "VALUES ('t', 'log', ?, '', '', 0, 0, ?)",
            (identity, f'{{"msg": "{message}"}}'),
        )


def test_an_event_keeps_a_file_by_its_address_alone(data: Data) -> None:
    data.put("a/image.png")
    data.put("a/told")
    event(data, "1", f"{OWN}a/image.png")
    event(data, "2", "a line of a log that names a/told")
    data.after_days(3)
    assert data.paths == {"a/image.png"}


def test_many_files_and_many_lines_are_searched_once_without_the_lock(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How a path may be written is made once for each, not for each line; while nothing can be
    written, only what is to go is looked for."""
    for number in range(500):
        data.put(f"a/{number}.png")
    for number in range(500):
        event(data, str(number), f"https://elsewhere/{number}")
    asked: list[tuple[str, bool]] = []
    forms = leftovers._forms

    def noted(path: str) -> tuple[str, ...]:
        asked.append((path, data.store._writing.locked()))
        return forms(path)

    monkeypatch.setattr(leftovers, "_forms", noted)
    data.leftovers().collect()
    assert sorted(asked) == sorted((path, False) for path in data.paths)
    event(data, "last", f"{OWN}a/7.png")
    asked.clear()
    data.now += DAY + 60
    assert data.leftovers().collect() == 499
    assert data.paths == {"a/7.png"}
    assert len(asked) == 2 * 499


def test_what_is_collected_waits_for_no_disk_while_nothing_can_be_written(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        data.put(f"a/{number}.png")
    data.put("asked for")
    data.leftovers().collect()
    data.now += DAY + 60
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    data.name("m", uri=f"{OWN}asked%20for")
    assert data.leftovers().collect() == 20
    assert data.paths == {"asked for"}
    assert synced == []
    assert data.files.delete("asked for")
    assert len(synced) == 1


def test_a_text_that_holds_no_last_name_of_a_file_is_not_rewritten(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes ten times as long as a search, and nothing can be written meanwhile."""

    class Noted:
        texts: ClassVar[list[str]] = []

        def sub(self, by: str, text: str) -> str:
            self.texts.append(text)
            return between.sub(by, text)

    between = leftovers._NOTHING_BETWEEN
    monkeypatch.setattr(leftovers, "_NOTHING_BETWEEN", Noted())
    data.put("top/x")
    data.put("kept/m")
    data.name("1", text=f"x // y, {OWN}kept//m and a//b//./c", uri=f"{OWN}elsewhere//y")
    data.after_days(2)
    assert data.paths == {"kept/m"}
    assert Noted.texts == []
    data.put("top/x")
    data.name("1", text="see top/.//x", uri=f"{OWN}kept/m")
    data.after_days(2)
    assert data.paths == {"kept/m", "top/x"}
    assert Noted.texts


def test_what_is_named_between_the_two_looks_begins_again(
    data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.put("a/1")
    data.put("a/2")
    data.leftovers().collect()
    data.now += DAY + 60
    writing = data.store.writing

    def named_before() -> Any:
        monkeypatch.undo()
        data.name("m", text="see a/1")
        return writing()

    monkeypatch.setattr(data.store, "writing", named_before)
    assert data.leftovers().collect() == 1
    assert data.paths == {"a/1"}
    with data.store.writing() as transaction:
        transaction.remove(Kind.MODEL, "m")
    assert data.leftovers().collect() == 0
    data.now += DAY + 60
    assert data.leftovers().collect() == 1


def test_not_all_documents_are_held_at_once(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is read at a time, and none after the last file was found."""
    data.put("a/1")
    data.put("a/2")
    for name in ("1", "2", "3", "4"):
        data.name(name, uri=f"{OWN}a/{name}")
    read: list[tuple[object, ...]] = []
    opened = Store._open

    def noted(_: sqlite3.Cursor, row: tuple[object, ...]) -> tuple[object, ...]:
        read.append(row)
        return row

    def opened_so(store: Store) -> sqlite3.Connection:
        connection = opened(store)
        connection.row_factory = noted
        return connection

    monkeypatch.setattr(Store, "_open", opened_so)
    assert data.leftovers().collect() == 0
    assert len(read) == 2
