"""What others read of the training: queries of tasks and models, values, files, a copy."""

import sys
from pathlib import Path
from typing import Any

from clearml import InputModel, Model, Task

project = sys.argv[1]
task: Any
[task] = Task.get_tasks(project_name=project, task_name="training", tags=["first"])
assert task.status == "completed", task.status
assert Task.query_tasks(project_name=project, tags=["first"]) == [task.id]
assert Task.query_tasks(project_name=project, tags=["-first"]) == []
assert Task.query_tasks(task_filter={"status": ["completed"], "order_by": ["-created"]})
assert task.get_parameters()["General/rate"] == "0.1"
assert task.get_configuration_object_as_dict("settings") == {"a": 1}
assert task.get_user_properties()["owner"]["value"] == "me"
assert list(task.artifacts["numbers"].get()) == [0, 1, 2]
assert task.artifacts["fields"].get() == {"a": [1, 2]}
curve = task.get_reported_scalars()["loss"]["train"]
assert curve["x"] == [0, 1, 2, 3, 4], curve
assert curve["y"][0] == 1.0, curve
assert len(task.get_all_reported_scalars()["loss"]["train"]["y"]) == 5
assert task.get_last_scalar_metrics()["loss"]["train"]["last"] == 0.2
assert task.get_reported_single_values() == {"accuracy": 0.9}
assert {plot["metric"] for plot in task.get_reported_plots()} == {"table", "hist"}
output = "".join(task.get_reported_console_output(50))
assert "to be seen" in output, output
assert "a line of the log" in output, output
assert task.get_last_iteration() == 4
[found] = Model.query_models(project_name=project, model_name="out model")
assert found.id == task.models["output"][-1].id
assert [m.id for m in Model.query_models(
    project_name=project, tags=["mine"], only_published=True)] == [found.id]  # fmt: skip
assert Model.query_models(
    project_name=project, tags=["__$not", "mine"], model_name="out model") == []  # fmt: skip
assert [m.id for m in Model.query_models(
    project_name=project, metadata={"kind": "small"})] == [found.id]  # fmt: skip
model = InputModel(found.id)
assert model.published
assert model.labels == {"cat": 0, "dog": 1}
assert model.get_metadata("kind") == "small"
assert Path(model.get_local_copy()).read_bytes() == b"weights" * 1000
assert task.models["input"][0].name == "in model"
copy: Any = Task.clone(task, name="the copy")
copy.set_parameters({"General/rate": 0.2})
assert Task.get_task(copy.id).get_parameters()["General/rate"] == "0.2"
assert copy.delete()
other: Any = Task.create(project_name=project, task_name="other task")
other.mark_started(force=True)
other.mark_stopped(force=True)
other.set_archived(True)
assert "archived" in Task.get_task(other.id).data.system_tags
print("READ")  # noqa: T201
