"""models.*"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from transformer_serving.control_plane import schema
from transformer_serving.desk.deploy.registry import ModelRegistry

if TYPE_CHECKING:
    from tests.control_plane.conftest import ApiClient


def test_create_and_read(api: ApiClient) -> None:
    project, task = api.project(), api.task()
    answer = api.call(
        "models.create",
        uri="http://h/uploading_file",
        name="m",
        labels={"cat": 1},
        project=project,
        task=task,
        public=False,
        tags=["b", "a"],
        metadata=[{"key": "k", "type": "str", "value": "v"}],
    )
    assert answer["created"] is True
    model = api.get_model(answer["id"])
    assert (model["project"], model["task"], model["ready"]) == (project, task, False)
    assert (model["labels"], model["tags"]) == ({"cat": 1}, ["a", "b"])
    assert model["metadata"] == {"k": {"key": "k", "type": "str", "value": "v"}}
    assert {"comment", "design", "system_tags", "ui_cache"} <= set(model)
    assert "public" not in model


@pytest.mark.parametrize(
    ("fields", "subcode"),
    [
        ({"uri": None}, 11),
        ({"labels": {"cat": "one"}}, 20),
        ({"project": "missing"}, 401),
        ({"task": "missing"}, 101),
        ({"design": "text"}, 20),
    ],
)
def test_refuses_a_model(api: ApiClient, fields: dict[str, object], subcode: int) -> None:
    sent = {"name": "m", "uri": "u", **fields}
    assert api.refusal("models.create", **sent) == (400, subcode)


@pytest.mark.parametrize("method", ["models.edit", "models.update"])
def test_change(api: ApiClient, method: str) -> None:
    task = api.task()
    model = api.model(task=task)
    before = api.get_model(model)
    assert api.call(method, model=model, comment="c")["fields"] == {"comment": "c"}
    assert api.get_model(model)["last_update"] == before["last_update"]
    api.call(method, model=model, uri="http://h/final", iteration=12)
    after = api.get_model(model)
    assert (after["uri"], after["comment"]) == ("http://h/final", "c")
    assert after["last_update"] > before["last_update"]
    assert api.get_task(task)["last_iteration"] == 12
    assert [m["id"] for m in api.call("models.get_all", last_iteration=[12, 12])["models"]] == [
        model
    ]
    assert api.call(method, model=model)["updated"] == 0
    assert api.refusal(method, model="none", uri="u") == (400, 201)


def test_get_all_as_the_auto_update_asks(api: ApiClient) -> None:
    project = api.project()
    made = [api.model("bert", project=project, uri=f"u{number}") for number in range(3)]
    api.call("models.archive_many", ids=[made[2]])
    api.call("models.set_ready", model=made[0])
    ask = {"name": "^bert$", "project": [project], "order_by": ["-created"], "page_size": 2}
    found = api.call(
        "models.get_all", system_tags=["-archived"], only_fields=["id", "created"], page=0, **ask
    )["models"]
    assert [model["id"] for model in found] == [made[1], made[0]]
    assert set(found[0]) == {"id", "created"}
    assert [m["id"] for m in api.call("models.get_all", ready=True)["models"]] == [made[0]]
    assert [m["id"] for m in api.call("models.get_all", uri=["u1"])["models"]] == [made[1]]
    api.call("models.unarchive_many", ids=[made[2]])
    assert len(api.call("models.get_all", **{**ask, "page_size": 9})["models"]) == 3


def test_set_ready_once_and_with_its_task(api: ApiClient) -> None:
    task = api.task()
    model = api.model(task=task)
    assert api.refusal("models.set_ready", model=model, publish_task=True) == (400, 110)
    assert api.get_model(model)["ready"] is False
    api.call("tasks.started", task=task)
    api.call("tasks.completed", task=task)
    answer = api.call("models.set_ready", model=model, publish_task=True)
    assert answer["updated"] == 1
    assert answer["published_task"]["id"] == task
    assert api.get_task(task)["status"] == "published"
    assert api.refusal("models.set_ready", model=model) == (400, 203)
    other = api.call("models.set_ready", model=api.model("other"))
    assert other == {"updated": 1, "published_task": None}


def test_metadata(api: ApiClient) -> None:
    model = api.model()
    one, two = ({"key": key, "type": "str", "value": key} for key in ("one", "two"))
    api.call("models.add_or_update_metadata", model=model, metadata=[one])
    api.call("models.add_or_update_metadata", model=model, metadata=[two])
    assert api.get_model(model)["metadata"] == {"one": one, "two": two}
    replace = {"model": model, "metadata": [one], "replace_metadata": True}
    api.call("models.add_or_update_metadata", **replace)
    assert api.get_model(model)["metadata"] == {"one": one}


def test_delete_spares_what_a_task_uses(api: ApiClient) -> None:
    task, model = api.task(), api.model("used")
    api.call("tasks.add_or_update_model", task=task, name="m", model=model, type="input")
    assert api.refusal("models.delete", model=model) == (400, 205)
    answer = api.call("models.delete", model=model, force=True)
    assert answer == {"deleted": True, "url": "http://files/used"}
    assert api.refusal("models.delete", model=model) == (400, 201)


def test_archived_each_for_itself(api: ApiClient) -> None:
    model = api.model()
    archived = api.call("models.archive_many", ids=[model, "missing"])
    assert archived["succeeded"] == [{"id": model, "archived": True}]
    assert archived["failed"][0]["error"]["codes"] == [400, 201]
    assert api.refusal("models.archive_many", ids=[]) == (400, 17)


def test_a_later_one_is_newer_also_after_the_clock_was_set_back(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback goes to the newest before the present one, and `deploy` keeps the newest."""
    task, moment = api.task(), datetime(2026, 11, 28, 10, 0, tzinfo=UTC)
    for minutes in (0, 30, -25, -24, 45):
        then = moment + timedelta(minutes=minutes)
        monkeypatch.setattr(schema, "now", partial(then.isoformat, timespec="microseconds"))
        api.model(f"texts {10 + minutes + 25}", task=task)
    service = SimpleNamespace(call=api.call)
    rows = ModelRegistry(cast("Any", service), task).bundles("texts")
    assert [row.bundle_version - 35 for row in rows] == [45, -24, -25, 30, 0]
    created = [api.get_model(row.model_id)["created"] for row in rows]
    assert created == sorted(set(created), reverse=True)
    assert created[0] == (moment + timedelta(minutes=45)).isoformat(timespec="microseconds")


@pytest.mark.parametrize("created", ["long ago", "2026", "9999-12-31T23:59:59.999999+00:00"])
def test_a_time_that_somebody_wrote_ends_no_creation(api: ApiClient, created: str) -> None:
    model = api.model("first")
    api.call("models.update", model=model, created=created)
    later = api.get_model(api.model("second"))
    assert datetime.fromisoformat(later["created"]) > datetime(2026, 1, 1, tzinfo=UTC)
