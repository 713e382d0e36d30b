"""The database: transactions, lookups, one process a folder."""

from __future__ import annotations

import gc
import json
import signal
import sqlite3
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
from starlette.testclient import TestClient

from tests.control_plane.conftest import ApiClient, ServerProcess
from tests.small_disk import fill, small_disk
from transformer_serving.control_plane import query
from transformer_serving.control_plane.app import create_app
from transformer_serving.control_plane.call import Call, Services
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.files.store import FileStore
from transformer_serving.control_plane.integrity import DATABASE
from transformer_serving.control_plane.methods import tasks
from transformer_serving.control_plane.scroll import Scrolls
from transformer_serving.control_plane.settings import ControlPlaneSettings
from transformer_serving.control_plane.store import Document, Kind, Store, StoreError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.close()


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    def fail() -> None:
        with store.writing() as transaction:
            transaction.put(Kind.TASK, {"id": "1"})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with store.reading() as transaction:
        assert transaction.get(Kind.TASK, "1") is None


def test_a_reader_sees_one_moment(store: Store) -> None:
    with store.reading() as before:
        assert before.get(Kind.TASK, "1") is None
        with store.writing() as transaction:
            transaction.put(Kind.TASK, {"id": "1"})
            assert transaction.get(Kind.TASK, "1") == {"id": "1"}
        assert before.get(Kind.TASK, "1") is None
    with store.reading() as after:
        assert after.get(Kind.TASK, "1") == {"id": "1"}


def test_find_by_any_number_of_ids_and_by_index(store: Store) -> None:
    with store.writing() as transaction:
        for number in range(1200):
            project = "even" if number % 2 == 0 else "odd"
            of = {"project": project, "type": "service" if number == 3 else "inference"}
            transaction.put(Kind.TASK, {"id": str(number), **of})
    everything = [str(number) for number in range(1200)]
    with store.reading() as transaction:
        assert len(list(transaction.find(Kind.TASK))) == 1200
        assert len(list(transaction.find(Kind.TASK, {"id": everything * 2}))) == 1200
        assert len(list(transaction.find(Kind.TASK, {"project": ["even"]}))) == 600
        assert [one["id"] for one in transaction.find(Kind.TASK, {"type": ["service"]})] == ["3"]
        assert list(transaction.find(Kind.TASK, {"id": []})) == []


def listed(store: Store, tmp_path: Path, **asked: object) -> list[dict[str, object]]:
    services = Services(store, FileStore(tmp_path), Scrolls())
    answer = tasks.get_all(Call({**asked}, [], services, "host"))
    return cast("list[dict[str, object]]", answer["tasks"])


@pytest.mark.parametrize("part", [{"page_size": 3}, {"size": 3}])
def test_a_list_holds_the_documents_of_its_page_only(
    store: Store, tmp_path: Path, part: dict[str, int]
) -> None:
    with store.writing() as transaction:
        for number in range(400):
            task: Document = {"id": f"{number:03}", "name": f"t{number % 7}"}
            task["configuration"] = {str(one): "value" * 10 for one in range(500)}
            transaction.put(Kind.TASK, task)
    one = len(json.dumps(task))
    tracemalloc.start()
    found = listed(store, tmp_path, name="t[0-5]", order_by=["-name"], **part)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [task["id"] for task in found] == ["005", "012", "019"]
    assert most < 30 * one


def test_a_list_that_is_refused_in_its_middle_keeps_nobody_in_the_past(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query, "_PATTERN_SECONDS", 0.01)
    with store.writing() as transaction:
        for number in range(3):
            transaction.put(Kind.TASK, {"id": str(number), "name": "a" * 60 + "!"})
    # Whoever holds the error holds what was under way.
    with pytest.raises(ApiError) as refused:
        listed(store, tmp_path, name="(a|aa)+$")
    with store.writing() as transaction:
        transaction.put(Kind.TASK, {"id": "later", "name": "later"})
    assert [task["id"] for task in listed(store, tmp_path, id=["later"])] == ["later"]
    assert refused.value.failure is ApiFailure.REGEX


def test_writers_take_turns(store: Store) -> None:
    with store.writing() as transaction:
        transaction.put(Kind.TASK, {"id": "1", "count": 0})

    def add() -> None:
        for _ in range(25):
            with store.writing() as transaction:
                document = transaction.get(Kind.TASK, "1")
                assert document is not None
                count = document["count"]
                assert isinstance(count, int)
                transaction.put(Kind.TASK, {"id": "1", "count": count + 1})

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with store.reading() as transaction:
        assert transaction.get(Kind.TASK, "1") == {"id": "1", "count": 100}


def test_a_folder_in_use_is_refused_until_it_is_free(tmp_path: Path) -> None:
    first = Store(tmp_path)
    with pytest.raises(StoreError, match="in use by another control plane"):
        Store(tmp_path)
    first.close()
    Store(tmp_path).close()


def test_closing_waits_for_readers(tmp_path: Path) -> None:
    """SQLite would end the process: a connection closed under another thread's statement."""
    store = Store(tmp_path)
    with store.writing() as transaction:
        for number in range(3000):
            transaction.put(Kind.TASK, {"id": str(number), "text": "a" * 500})
    reading = threading.Event()
    read: list[int] = []

    def read_long() -> None:
        with store.reading() as transaction:
            for _ in range(20):
                read.append(len(transaction.rows("SELECT doc FROM task")))
                reading.set()

    reader = threading.Thread(target=read_long)
    reader.start()
    reading.wait(20)
    store.close()
    assert read == [3000] * 20
    reader.join()
    with pytest.raises(StoreError, match="stopping"), store.reading():
        pass
    with pytest.raises(StoreError, match="stopping"), store.writing():
        pass
    store.close()


def test_a_full_disk_is_called_one(settings: ControlPlaneSettings) -> None:
    """SQLite's own error for it, which is no OSError."""
    app = create_app(settings)
    with TestClient(app, base_url="http://127.0.0.1:8008") as http:
        api = ApiClient(http)
        api.task()
        # Others' tests run long collections, after which what is alive is not listed.
        gc.unfreeze()
        store = next(one for one in gc.get_objects() if type(one) is Store and not one._closed)
        gc.freeze()
        used = store._writer.execute("PRAGMA page_count").fetchone()[0]
        store._writer.execute(f"PRAGMA max_page_count = {used}")
        answers = [api.answer("tasks.create", name="a" * 5000, type="training") for _ in range(9)]
    status, body = answers[-1]
    assert status == 500
    assert "insufficient disk space" in body["meta"]["result_msg"]


def data_on(disk: Path, server: ServerProcess) -> None:
    """Its log stays elsewhere."""
    (disk / "data").mkdir()
    server.data.symlink_to(disk / "data")


def test_one_that_was_killed_comes_back_on_a_full_disk(
    own_server: ServerProcess, tmp_path: Path
) -> None:
    """It reads what there is, writes again once there is room, and nothing of it is lost."""
    with small_disk(tmp_path / "disk", 4) as disk:
        data_on(disk, own_server)
        own_server.start()
        own_server.call(own_server.session(), "tasks.create", name="first", type="training")
        own_server.stop(signal.SIGKILL)
        filler = fill(disk)
        own_server.start()
        session = own_server.session()
        (task,) = own_server.call(session, "tasks.get_all", only_fields=["name"])["tasks"]
        assert task["name"] == "first"
        long = {"name": "a" * 5000, "type": "training"}
        created = f"{own_server.url}/v2.23/tasks.create"
        answer = session.get(created, json=long, timeout=30)
        assert "insufficient disk space" in answer.json()["meta"]["result_msg"]
        filler.unlink()
        own_server.call(session, "tasks.create", **long)
        own_server.stop()


def test_a_full_disk_without_data_is_named(own_server: ServerProcess, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1) as disk:
        data_on(disk, own_server)
        fill(disk)
        with pytest.raises(AssertionError):
            own_server.start()
    last = own_server.log().splitlines()[-1]
    assert last.startswith("Error: ")
    assert last.endswith(
        "disk is full. Fix: see that its disk has room and that this user may "
        "read and write its folder"
    )


def test_an_index_that_an_older_kit_had_not_is_made(tmp_path: Path) -> None:
    Store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / DATABASE)) as database:
        database.execute("DROP INDEX model_uri")
    store = Store(tmp_path)
    with store.reading() as transaction:
        assert transaction.rows("SELECT 1 FROM sqlite_master WHERE name = 'model_uri'")
    store.close()


def test_no_failure_is_one_that_the_sdk_tries_again_without_end() -> None:
    assert max(failure.status for failure in ApiFailure) <= 500
