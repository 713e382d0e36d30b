"""tasks.*: artifacts, models, parameters, configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.control_plane.conftest import ApiClient


def artifact(key: str, uri: str = "u", **fields: Any) -> dict[str, Any]:
    return {"key": key, "type": "custom", "uri": uri, **fields}


def parameter(section: str, name: str, value: str = "1") -> dict[str, Any]:
    return {"section": section, "name": name, "value": value}


def artifacts(api: ApiClient, task: str) -> list[tuple[str, str, str]]:
    kept = api.get_task(task)["execution"]["artifacts"]
    return [(item["key"], item["mode"], item["uri"]) for item in kept]


def test_key_and_mode_are_an_artifacts_identity(api: ApiClient) -> None:
    task = api.task()
    first = [artifact("b"), artifact("a", method="get")]
    assert api.call("tasks.add_or_update_artifacts", task=task, artifacts=first) == {"updated": 1}
    second = [artifact("a", "new"), artifact("a", "in", mode="input")]
    api.call("tasks.add_or_update_artifacts", task=task, artifacts=second)
    assert artifacts(api, task) == [
        ("a", "input", "in"),
        ("a", "output", "new"),
        ("b", "output", "u"),
    ]
    assert "method" not in str(api.get_task(task)["execution"])
    gone = [{"key": "a", "mode": "input"}, {"key": "b"}]
    api.call("tasks.delete_artifacts", task=task, artifacts=gone)
    assert artifacts(api, task) == [("a", "output", "new")]


@pytest.mark.parametrize(
    ("wrong", "subcode"),
    [({"type": "custom"}, 11), ({"key": "k"}, 20), ({"key": "k", "type": "c", "mode": "x"}, 16)],
)
def test_refuses_an_artifact(api: ApiClient, wrong: dict[str, str], subcode: int) -> None:
    sent = {"task": api.task(), "artifacts": [wrong]}
    assert api.refusal("tasks.add_or_update_artifacts", **sent) == (400, subcode)


def test_contents_of_a_finished_task_are_closed(api: ApiClient) -> None:
    task = api.task()
    change = {"task": task, "artifacts": [artifact("k")]}
    api.call("tasks.started", task=task)
    assert api.refusal("tasks.add_or_update_artifacts", **change) == (400, 110)
    api.call("tasks.add_or_update_artifacts", force=True, **change)
    api.call("tasks.completed", task=task)
    assert api.refusal("tasks.add_or_update_artifacts", force=True, **change) == (400, 110)
    properties = [parameter("Properties", "seen")]
    assert api.call("tasks.edit_hyper_params", task=task, hyperparams=properties)["updated"] == 1
    assert list(api.get_task(task)["hyperparams"]) == ["properties"]


def test_models_by_name_and_side(api: ApiClient) -> None:
    task = api.task()
    for name, model, side in (("m", "1", "input"), ("m", "2", "output"), ("m", "3", "input")):
        sent = {"task": task, "name": name, "model": model, "type": side, "iteration": 3}
        assert api.call("tasks.add_or_update_model", **sent) == {"updated": 1}
    models = api.get_task(task)["models"]
    assert [item["model"] for item in models["input"]] == ["3"]
    assert [item["model"] for item in models["output"]] == ["2"]
    assert api.get_task(task)["last_iteration"] == 3
    api.call("tasks.delete_models", task=task, models=[{"name": "m", "type": "input"}])
    models = api.get_task(task)["models"]
    assert (models["input"], len(models["output"])) == ([], 1)
    odd = {"task": task, "name": "m", "model": "1", "type": "odd"}
    assert api.refusal("tasks.add_or_update_model", **odd) == (400, 16)


def test_requirements(api: ApiClient) -> None:
    task = api.task(script={"binary": "python"})
    api.call("tasks.set_requirements", task=task, requirements={"pip": "numpy"})
    assert api.get_task(task)["script"] == {"binary": "python", "requirements": {"pip": "numpy"}}
    assert api.refusal("tasks.set_requirements", task=task, requirements="pip") == (400, 20)


@pytest.mark.parametrize(
    ("replace", "left"),
    [
        ("none", {"A": ["x", "y"], "B": ["z"]}),
        ("section", {"A": ["y"], "B": ["z"]}),
        ("all", {"A": ["y"]}),
    ],
)
def test_hyper_params(api: ApiClient, replace: str, left: dict[str, list[str]]) -> None:
    task = api.task()
    first = [parameter("A", "x"), parameter("B", "z")]
    api.call("tasks.edit_hyper_params", task=task, hyperparams=first)
    api.call(
        "tasks.edit_hyper_params",
        task=task,
        hyperparams=[parameter("A", "y", "2")],
        replace_hyperparams=replace,
    )
    kept = api.get_task(task)["hyperparams"]
    assert {section: sorted(items) for section, items in kept.items()} == left
    assert kept["A"]["y"] == parameter("A", "y", "2")


def test_hyper_params_read_and_deleted(api: ApiClient) -> None:
    task = api.task()
    items = [parameter("A", "x"), parameter("A", "y"), parameter("B", "z")]
    api.call("tasks.edit_hyper_params", task=task, hyperparams=items)
    read = api.call("tasks.get_hyper_params", tasks=[task])["params"]
    assert read == [{"task": task, "hyperparams": items}]
    gone = [{"section": "A", "name": "x"}, {"section": "B"}, {"section": "C", "name": "n"}]
    api.call("tasks.delete_hyper_params", task=task, hyperparams=gone)
    assert api.get_task(task)["hyperparams"] == {"A": {"y": parameter("A", "y")}}
    assert api.refusal("tasks.get_hyper_params", tasks=[task, "missing"]) == (400, 101)


def test_configuration(api: ApiClient) -> None:
    task = api.task()
    one, two, three = ({"name": n, "value": n * 2} for n in ("one", "two", "three"))
    api.call("tasks.edit_configuration", task=task, configuration=[one, two])
    api.call("tasks.edit_configuration", task=task, configuration=[{**one, "value": "new"}])
    written = api.get_task(task)["configuration"]
    assert written == {"one": {"name": "one", "value": "new"}, "two": two}
    replaced = {"task": task, "configuration": [three], "replace_configuration": True}
    api.call("tasks.edit_configuration", **replaced)
    assert api.get_task(task)["configuration"] == {"three": three}
