"""tasks.*: documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.control_plane.conftest import ApiClient


def artifact(key: str, uri: str = "u", **fields: Any) -> dict[str, Any]:
    return {"key": key, "type": "custom", "uri": uri, **fields}


def test_a_new_task_has_the_sections_the_sdk_reads(api: ApiClient) -> None:
    project = api.project()
    task = api.get_task(api.task(" named ", project=project, system_tags=["b", "a", "a"]))
    assert task["name"] == "named"
    assert task["project"] == project
    assert task["status"] == "created"
    assert task["output"] == {"destination": ""}
    assert task["models"] == {"input": [], "output": []}
    assert task["execution"] == {"artifacts": []}
    assert task["system_tags"] == ["a", "b"]
    assert "method" not in task
    assert task["created"].endswith("+00:00")


@pytest.mark.parametrize(
    ("fields", "subcode"),
    [
        ({"name": "ab"}, 12),
        ({"type": "odd"}, 16),
        ({"type": None}, 11),
        ({"project": "missing"}, 401),
        ({"parent": "missing"}, 101),
        ({"tags": "a"}, 20),
        ({"tags": [1]}, 20),
        ({"hyperparams": {"General": []}}, 20),
    ],
)
def test_refuses_a_task(api: ApiClient, fields: dict[str, Any], subcode: int) -> None:
    sent = {"name": "task", "type": "training", **fields}
    assert api.refusal("tasks.create", **sent) == (400, subcode)


def test_edit_merges_sections_and_replaces_maps(api: ApiClient) -> None:
    task = api.task(
        script={"binary": "python", "branch": "main"},
        execution={"framework": "x", "queue": "q"},
        configuration={"one": {"name": "one", "value": "1"}},
        hyperparams={"General": {"a": {"name": "a", "value": "1"}}},
        output_dest="http://here",
    )
    answer = api.call(
        "tasks.edit",
        task=task,
        script={"branch": "other"},
        execution={"framework": "y"},
        configuration={"two": {"name": "two", "value": "2"}},
        hyperparams={"Args": {}},
        container={"image": "i"},
        runtime={"version": "1.3.5"},
    )
    assert answer["updated"] == 1
    edited = api.get_task(task)
    assert edited["script"] == {"binary": "python", "branch": "other"}
    assert edited["execution"] == {"framework": "y", "queue": "q", "artifacts": []}
    assert list(edited["configuration"]) == ["two"]
    assert edited["hyperparams"] == {"Args": {}}
    assert edited["runtime"] == {"version": "1.3.5"}
    assert edited["output"]["destination"] == "http://here"


def test_edit_needs_force_once_the_task_runs(api: ApiClient) -> None:
    task = api.task()
    api.call("tasks.started", task=task)
    assert api.refusal("tasks.edit", task=task, comment="c") == (400, 110)
    assert api.call("tasks.edit", task=task, comment="c", force=True)["updated"] == 1
    assert api.call("tasks.edit", task=task, force=True)["updated"] == 0
    assert api.refusal("tasks.edit", task="none", comment="c") == (400, 101)


def test_a_refused_edit_changes_nothing(api: ApiClient) -> None:
    task = api.task()
    before = api.get_task(task)
    assert api.refusal("tasks.edit", task=task, comment="c", project="none") == (400, 401)
    assert api.get_task(task) == before


def test_notes_do_not_count_as_a_report(api: ApiClient) -> None:
    task = api.task()
    before = api.get_task(task)
    api.call("tasks.update", task=task, tags=["x"], name="renamed")
    after = api.get_task(task)
    assert after["last_update"] == before["last_update"]
    assert after["last_change"] > before["last_change"]
    assert (after["tags"], after["name"]) == (["x"], "renamed")


def test_get_all_by_what_the_clients_ask(api: ApiClient) -> None:
    project = api.project()
    one = api.task("serving one", type="service", project=project, system_tags=["SERVING-x"])
    two = api.task("training two", project=project)
    api.call("tasks.started", task=one)

    def found(**fields: Any) -> set[str]:
        return {task["id"] for task in api.call("tasks.get_all", **fields)["tasks"]}

    assert found(type=["service"], status=["created", "in_progress"]) == {one}
    assert found(project=[project]) == {one, two}
    assert found(project=[project], system_tags=["-SERVING-x"]) == {two}
    assert found(system_tags=["__$all", "SERVING-x", "__$not", "archived"]) == {one}
    assert found(id=[two, "missing"]) == {two}
    assert found(name="^serving") == {one}
    assert found(project=["missing"]) == set()


def test_hidden_tasks_are_found_when_they_are_asked_for(api: ApiClient) -> None:
    shown, hidden = api.task(), api.task(system_tags=["hidden"])

    def found(**fields: object) -> set[str]:
        return {task["id"] for task in api.call("tasks.get_all", **fields)["tasks"]}

    assert found() == {shown}
    assert found(search_hidden=True) == {shown, hidden}
    assert found(id=[hidden]) == {hidden}


def test_get_all_pages_and_scrolls(api: ApiClient) -> None:
    made = [api.task(f"task {number}") for number in range(5)]
    ask = {"order_by": ["created"], "only_fields": ["id"]}
    pages = [api.call("tasks.get_all", page=page, page_size=2, **ask)["tasks"] for page in range(4)]
    assert [len(page) for page in pages] == [2, 2, 1, 0]
    assert [task["id"] for page in pages for task in page] == made
    first = api.call("tasks.get_all", scroll_id=None, size=3, **ask)
    scroll = first["scroll_id"]
    rest = api.call("tasks.get_all", scroll_id=scroll, size=3, **ask)
    assert [task["id"] for task in first["tasks"] + rest["tasks"]] == made
    again = api.call("tasks.get_all", scroll_id=scroll, size=1, refresh_scroll=True, **ask)
    assert len(again["tasks"]) == 5


def test_clone_copies_the_recipe_not_the_results(api: ApiClient) -> None:
    model = api.model()
    task = api.task(hyperparams={"Args": {"a": {"name": "a", "value": "1"}}}, tags=["t"])
    api.call(
        "tasks.add_or_update_artifacts",
        task=task,
        artifacts=[artifact("in", mode="input"), artifact("out")],
    )
    api.call("tasks.add_or_update_model", task=task, name="m", model=model, type="input")
    api.call("tasks.add_or_update_model", task=task, name="o", model=model, type="output")
    copy = api.get_task(api.call("tasks.clone", task=task, new_task_name="the copy")["id"])
    assert (copy["name"], copy["parent"], copy["status"]) == ("the copy", task, "created")
    assert copy["hyperparams"] == {"Args": {"a": {"name": "a", "value": "1"}}}
    assert [item["key"] for item in copy["execution"]["artifacts"]] == ["in"]
    assert [item["name"] for item in copy["models"]["input"]] == ["m"]
    assert copy["models"]["output"] == []


def test_a_copy_is_of_the_recipe_and_not_of_the_run(api: ApiClient) -> None:
    task = api.task(
        "the name",
        output_dest="s3://bucket",
        execution={"queue": "q", "framework": "f"},
        system_tags=["archived", "development", "mine"],
        comment="said of it",
    )

    def copied(source: str, **fields: object) -> dict[str, Any]:
        return api.get_task(api.call("tasks.clone", task=source, **fields)["id"])

    copy = copied(task)
    assert (copy["name"], copy["comment"], copy["parent"]) == ("the name", "said of it", task)
    assert copy["output"] == {"destination": "s3://bucket"}
    assert copy["execution"] == {"framework": "f", "artifacts": []}
    assert copy["system_tags"] == ["mine"]
    assert copied(task, new_task_system_tags=["development"])["system_tags"] == ["development"]
    # A copy of a copy lies beside it; one of a copy whose parent is gone lies below that copy.
    assert copied(copy["id"])["parent"] == task
    api.call("tasks.delete", task=task, force=True)
    assert copied(copy["id"])["parent"] == copy["id"]


def test_delete_takes_results_along_but_not_what_is_published_or_used(api: ApiClient) -> None:
    task, user = api.task(), api.task("user of a model")
    child = api.task("child task", parent=task)
    draft, used, published = (api.model(name, task=task) for name in ("draft", "used", "public"))
    for model in (draft, used, published):
        item = {"name": model, "model": model, "type": "output"}
        api.call("tasks.add_or_update_model", task=task, **item)
    api.call("tasks.add_or_update_model", task=user, name="m", model=used, type="input")
    api.call("tasks.add_or_update_artifacts", task=task, artifacts=[artifact("k", "s3://b/k")])
    api.call("models.set_ready", model=published)
    assert api.refusal("tasks.delete", task=task) == (400, 123)
    answer = api.call("tasks.delete", task=task, force=True, return_file_urls=True)
    assert answer["deleted"] is True
    assert answer["urls"]["artifact_urls"] == ["s3://b/k"]
    assert answer["urls"]["model_urls"] == ["http://files/draft"]
    assert (answer["deleted_models"], answer["updated_models"]) == (1, 2)
    assert api.refusal("models.get_by_id", model=draft) == (400, 201)
    assert api.get_model(used)["task"] is None
    assert api.get_task(child)["parent"] == f"__DELETED__{task}"


def test_a_running_task_is_deleted_by_force_or_once_archived(api: ApiClient) -> None:
    task = api.task()
    api.call("tasks.started", task=task)
    assert api.refusal("tasks.delete", task=task) == (400, 123)
    other = api.task()
    api.call("tasks.started", task=other)
    assert api.call("tasks.delete", task=other, force=True)["deleted"] is True
    api.call("tasks.edit", task=task, force=True, system_tags=["archived"])
    assert api.call("tasks.delete", task=task)["deleted"] is True


def test_tasks_by_their_figures(api: ApiClient) -> None:
    first, second = api.task(), api.task()
    event = {"type": "training_stats_scalar", "metric": "m", "variant": "v", "value": 1, "iter": 7}
    api.call("events.add", task=second, **event)
    api.call("tasks.edit", task=first, execution={"queue": "q"})

    def found(**fields: object) -> list[str]:
        return [task["id"] for task in api.call("tasks.get_all", **fields)["tasks"]]

    assert found(last_iteration=[1, None]) == [second]
    assert found(last_iteration=[None, 6]) == [first]
    assert found(active_duration=[1, None]) == []
    assert found(**{"execution.queue": ["q"]}) == [first]
    assert api.refusal("tasks.get_all", last_iteration=7) == (400, 12)
