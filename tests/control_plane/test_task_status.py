"""tasks.*: a task's life."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from transformer_serving.control_plane.store import Store, Transaction

if TYPE_CHECKING:
    from tests.control_plane.conftest import ApiClient

# Looks that do not go through all tasks.
_BY_INDEX = re.compile(r"WHERE (id|json_extract\(doc, '\$\.(parent|project)'\)) (=|IN)")


def test_the_usual_life(api: ApiClient) -> None:
    task = api.task()
    begun = api.call("tasks.started", task=task, status_reason="r", status_message="m")
    assert (begun["started"], begun["updated"]) == (1, 1)
    running = api.get_task(task)
    assert (running["status"], running["status_reason"]) == ("in_progress", "r")
    again = api.call("tasks.started", task=task)
    assert "started" not in again["fields"]
    assert api.get_task(task)["started"] == running["started"]
    assert api.call("tasks.completed", task=task)["published"] == 0
    done = api.get_task(task)
    assert done["status"] == "completed"
    assert done["completed"] >= running["started"]
    assert api.call("tasks.publish", task=task)["updated"] == 1
    assert api.get_task(task)["published"]


@pytest.mark.parametrize(
    ("before", "move"),
    [
        ([], "stopped"),
        ([], "failed"),
        ([], "completed"),
        ([], "publish"),
        (["started", "failed"], "completed"),
        (["started", "completed", "publish"], "started"),
    ],
)
def test_moves_that_need_force(api: ApiClient, before: list[str], move: str) -> None:
    task = api.task()
    for step in before:
        api.call(f"tasks.{step}", task=task)
    assert api.refusal(f"tasks.{move}", task=task) == (400, 110)
    assert api.call(f"tasks.{move}", task=task, force=True)["updated"] == 1


def test_stop_takes_effect_at_once(api: ApiClient) -> None:
    task = api.task()
    api.call("tasks.started", task=task)
    api.call("tasks.stop", task=task)
    assert api.get_task(task)["status"] == "stopped"


def test_completed_with_publish_publishes_the_last_model(api: ApiClient) -> None:
    task, model = api.task(), api.model()
    api.call("tasks.started", task=task)
    api.call("tasks.add_or_update_model", task=task, name="m", model=model, type="output")
    assert api.call("tasks.completed", task=task, publish=True)["published"] == 1
    assert api.get_task(task)["status"] == "published"
    assert api.get_model(model)["ready"] is True


def test_reset_forgets_the_run(api: ApiClient) -> None:
    task = api.task(script={"branch": "b"}, runtime={"a": "b"})
    draft = api.model("draft", task=task)
    api.call("tasks.started", task=task)
    api.call("tasks.add_or_update_model", task=task, name="m", model=draft, type="output")
    artifacts = [
        {"key": "in", "type": "custom", "mode": "input"},
        {"key": "out", "type": "custom", "uri": "u"},
    ]
    api.call("tasks.add_or_update_artifacts", task=task, artifacts=artifacts, force=True)
    event = {"type": "training_stats_scalar", "metric": "m", "variant": "v", "value": 1, "iter": 7}
    api.call("events.add", task=task, **event)
    assert api.get_task(task)["last_iteration"] == 7
    answer = api.call("tasks.reset", task=task, force=True, return_file_urls=True)
    assert (answer["updated"], answer["deleted_models"]) == (1, 1)
    assert answer["urls"]["artifact_urls"] == ["u"]
    for field, kind in (("deleted_indices", list), ("dequeued", dict), ("events", dict)):
        assert isinstance(answer[field], kind)
    after = api.get_task(task)
    assert (after["status"], after["last_iteration"], after["last_metrics"]) == ("created", 0, {})
    assert [item["key"] for item in after["execution"]["artifacts"]] == ["in"]
    assert (after["models"]["output"], after["runtime"]) == ([], {})
    assert after["script"] == {"branch": "b"}
    assert "started" not in after
    assert api.call("events.get_task_events", task=task)["events"] == []
    api.call("tasks.reset", task=task, force=True, clear_all=True)
    assert api.get_task(task)["script"] == {}


def test_a_reset_looks_for_the_users_of_all_its_models_at_once(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can be written meanwhile: a look for each of some models took minutes."""
    task = api.task()
    models = [api.model(f"model {number}", task=task) for number in range(5)]
    users = [api.task(models={"input": [{"name": "m", "model": models[0]}]}) for _ in range(2)]
    api.task(models={"input": ["no item", {"name": "m"}, None]})
    api.task(models={"input": None})
    own = {"input": [{"name": "m", "model": models[1]}]}
    api.call("tasks.edit", task=task, models=own)
    looks: list[str] = []
    writing = Store.writing

    def noted(statement: str) -> None:
        if "FROM task" in statement and not _BY_INDEX.search(statement):
            looks.append(statement)

    def traced(store: Store) -> AbstractContextManager[Transaction]:
        store._writer.set_trace_callback(noted)
        return writing(store)

    monkeypatch.setattr(Store, "writing", traced)
    answer = api.call("tasks.reset", task=task, force=True)
    assert (answer["deleted_models"], answer["updated_models"]) == (4, 1)
    assert len(looks) == 1, looks
    assert api.get_model(models[0])["task"] is None
    status, body = api.answer("models.delete", model=models[0])
    assert (status, body["meta"]["error_data"]) == (400, {"num_tasks": len(users)})


def test_a_published_task_is_reset_by_force_only(api: ApiClient) -> None:
    task = api.task()
    api.call("tasks.publish", task=task, force=True)
    assert api.refusal("tasks.reset", task=task) == (400, 110)
    assert api.call("tasks.reset", task=task, force=True)["updated"] == 1


def test_ping_notes_who_and_when(api: ApiClient) -> None:
    task = api.task()
    api.call("tasks.started", task=task)
    before = api.get_task(task)["last_update"]
    api.headers["X-ClearML-Worker"] = "worker-7"
    assert api.call("tasks.ping", task=task) == {}
    after = api.get_task(task)
    assert after["last_worker"] == "worker-7"
    assert after["last_worker_report"] == after["last_update"] > before
    assert after["active_duration"] >= 0
    assert api.call("tasks.ping", task="missing") == {}


@pytest.mark.parametrize("wanted", [True, False])
def test_reset_removes_the_files_held_here(api: ApiClient, wanted: bool) -> None:
    task = api.task()
    path = "P/t.1/artifacts/a b/x.bin"
    assert api.http.post("/", files={path: ("x", b"bytes")}, headers=api.headers).is_success
    own = "http://127.0.0.1:8008/P/t.1/artifacts/a%20b/x.bin"
    others = "http://127.0.0.1:9/P/t.1/artifacts/a%20b/x.bin"
    artifacts = [{"key": url, "type": "custom", "uri": url} for url in (own, others)]
    api.call("tasks.add_or_update_artifacts", task=task, artifacts=artifacts)
    ask = {"task": task, "return_file_urls": True, "delete_external_artifacts": wanted}
    left = api.call("tasks.reset", **ask)["urls"]["artifact_urls"]
    assert sorted(left) == ([others] if wanted else sorted([own, others]))
    status = api.http.get(f"/{path}", headers=api.headers).status_code
    assert status == (404 if wanted else 200)
