"""What is reported for ever takes a bounded part of the disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.control_plane.conftest import ApiClient
from tests.control_plane.test_events import scalar, send
from tests.engine.triton_server import wait_until
from transformer_serving.control_plane import retention
from transformer_serving.control_plane.app import create_app
from transformer_serving.control_plane.integrity import DATABASE
from transformer_serving.control_plane.methods import events
from transformer_serving.control_plane.retention import Retention
from transformer_serving.control_plane.settings import ControlPlaneSettings
from transformer_serving.control_plane.store import Kind, Store, StoreError

SCALAR = "training_stats_scalar"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    with store.writing() as transaction:
        transaction.put(Kind.TASK, {"id": "t"})
        transaction.put(Kind.MODEL, {"id": "m"})
    yield store
    store.close()


@pytest.fixture(autouse=True)
def _few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "KEPT", {SCALAR: 30})
    monkeypatch.setattr(retention, "KEPT_OF_OTHERS", 5)
    monkeypatch.setattr(retention, "_STEP", 7)


def report(store: Store, owner: str, kind: str, times: range) -> None:
    """Each event is one of a series of its own, as those of each version of a bundle are."""
    with store.writing() as transaction:
        for moment in times:
            transaction.execute(
                "INSERT INTO event (owner, type, identity, metric, variant, iter, timestamp, doc) "
                "VALUES (?, ?, ?, 'm', ?, 0, ?, '{}')",
                (owner, kind, f"{owner} {kind} {moment}", str(moment), moment),
            )


def kept(store: Store, owner: str, kind: str) -> list[object]:
    statement = "SELECT timestamp FROM event WHERE owner = ? AND type = ? ORDER BY timestamp"
    with store.reading() as transaction:
        return [row[0] for row in transaction.rows(statement, (owner, kind))]


def test_of_each_task_and_type_the_newest_are_kept(store: Store) -> None:
    report(store, "t", SCALAR, range(100))
    report(store, "t", "log", range(12))
    report(store, "m", SCALAR, range(20))
    assert Retention(store, 0).prune() == 77
    assert kept(store, "t", SCALAR) == list(range(70, 100))
    assert kept(store, "t", "log") == list(range(7, 12))
    assert kept(store, "m", SCALAR) == list(range(20))
    assert Retention(store, 0).prune() == 0


def test_what_came_after_a_clock_that_ran_ahead_stays(store: Store) -> None:
    report(store, "t", SCALAR, range(1000, 1030))
    report(store, "t", SCALAR, range(40))
    assert Retention(store, 0).prune() == 40
    assert kept(store, "t", SCALAR) == list(range(10, 40))


def test_what_is_reported_again_comes_last(api: ApiClient, settings: ControlPlaneSettings) -> None:
    task = api.task()
    send(api, *(scalar(task, number, 0.0) for number in range(3)))
    send(api, scalar(task, 0, 1.0))
    with closing(sqlite3.connect(settings.data / DATABASE)) as connection:
        numbers = connection.execute("SELECT iter FROM event ORDER BY number").fetchall()
    assert numbers == [(1,), (2,), (0,)]


def test_what_belongs_to_nobody_goes(store: Store) -> None:
    report(store, "deleted long ago", "log", range(3))
    assert Retention(store, 0).prune() == 3
    assert kept(store, "deleted long ago", "log") == []


def test_writers_have_their_turns_in_between(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    report(store, "t", SCALAR, range(100))
    taken: list[bool] = []
    monkeypatch.setattr("time.sleep", lambda _: taken.append(store._writing.locked()))
    assert Retention(store).prune() == 70
    assert taken == [False] * 10


def test_a_store_that_is_closed_ends_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    report(store, "t", SCALAR, range(100))
    monkeypatch.setattr("time.sleep", lambda _: store.close())
    with pytest.raises(StoreError, match="stopping"):
        Retention(store).prune()


def test_the_last_values_of_a_task_are_bounded_too(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_LAST_VALUES", 4)
    task = api.task()
    send(api, *(scalar(task, number, number, variant=f"v{number}") for number in range(6)))
    send(api, scalar(task, 9, 9.0, metric="other"))
    last = api.get_task(task)["last_metrics"]
    names = {(row["metric"], row["variant"]) for found in last.values() for row in found.values()}
    assert names == {("loss", "v3"), ("loss", "v4"), ("loss", "v5"), ("other", "train")}


@pytest.mark.parametrize("ahead", ["caller", "server"])
def test_the_last_values_after_a_clock_that_ran_ahead(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, ahead: str
) -> None:
    monkeypatch.setattr(events, "_LAST_VALUES", 4)
    task = api.task()
    hour = 3_600_000
    clock = [9 * hour if ahead == "server" else hour]
    monkeypatch.setattr(events, "_now", lambda: clock[0])
    send(api, *(scalar(task, 1, 1.0, variant=f"old{n}", timestamp=9 * hour) for n in range(4)))
    for number in range(6):
        clock[0] = 2 * hour + number
        send(api, scalar(task, number, 1.0, variant=f"v{number}", timestamp=clock[0]))
    last = api.get_task(task)["last_metrics"]
    names = {row["variant"] for found in last.values() for row in found.values()}
    assert names == {"v2", "v3", "v4", "v5"}


def test_a_starting_control_plane_prunes_what_years_left(settings: ControlPlaneSettings) -> None:
    before = Store(settings.data)
    with before.writing() as transaction:
        transaction.put(Kind.TASK, {"id": "t"})
    report(before, "t", SCALAR, range(100))
    before.close()
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8008"):
        wait_until(lambda: rows(settings) == 30, 20)


@pytest.mark.parametrize("way", ["models.delete", "projects.delete", "tasks.delete"])
def test_what_was_reported_goes_with_its_owner(
    api: ApiClient, settings: ControlPlaneSettings, way: str
) -> None:
    project = api.project()
    task, model = api.task(project=project), api.model(project=project)
    send(api, scalar(task, 1, 1.0), scalar("", 1, 2.0, model_event=True, model=model))
    assert rows(settings) == 2
    if way == "projects.delete":
        api.call(way, project=project, force=True, delete_contents=True)
        assert rows(settings) == 0
        return
    kind = way.split(".")[0].removesuffix("s")
    api.call(way, **{kind: task if kind == "task" else model}, force=True)
    assert rows(settings) == 1


def rows(settings: ControlPlaneSettings) -> int:
    with closing(sqlite3.connect(settings.data / DATABASE)) as connection:
        return int(connection.execute("SELECT count(*) FROM event").fetchone()[0])
