"""The serving task's configuration, item by item, and the tasks of its workers and of ours.

`tasks.edit_configuration` changes the items that it is given and no others, where the SDK and
clearml-serving write the whole map.

Tested by tests/stack/test_rollout.py and tests/engine/test_clearml_edge.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from clearml import Task
from clearml.backend_api.services import models as model_calls, tasks as task_calls
from clearml.utilities.config import config_dict_to_text

from transformer_serving.contract.rollout import EDITABLE

_PAGE = 500
# As clearml-serving names the task of each of its workers (setup_task in 1.3.5).
_INSTANCE = "{} - serve instance"


def texts(task: Task) -> dict[str, str]:
    """Every item as text, as the task was read last."""
    return _texts(task.data.configuration)


def section(task: Task, name: str) -> dict[str, Any]:
    """One of clearml-serving's own items, as the task was read last."""
    found: dict[str, Any] = json.loads(
        json.dumps(task.get_configuration_object_as_dict(name) or {}, default=str)
    )
    return found


def write(task: Task, items: Mapping[str, str | Mapping[str, Any]]) -> bool:
    """Change these items together; mappings in the form of clearml-serving's own.

    A task that was stopped by when it was read last is started again.
    """
    rows = [
        {"name": name, "value": item if isinstance(item, str) else config_dict_to_text(dict(item))}
        for name, item in items.items()
    ]
    if str(task.data.status) not in EDITABLE:
        task.mark_started(force=True)
    answer: Any = task.send(
        task_calls.EditConfigurationRequest(
            task=task.id, configuration=rows, replace_configuration=False, force=True
        )
    )
    return bool(answer and answer.ok())


def of_instances(task: Task, name: str) -> dict[str, str] | None:
    """That item of each worker's own task, by the task's id; None where there is no answer."""
    answer: Any = task.send(
        task_calls.GetAllRequest(
            project=[task.data.project],
            name=f"^{re.escape(_INSTANCE.format(task.name))}$",
            status=["in_progress"],
            only_fields=["id", "configuration"],
            order_by=["-last_update"],
            search_hidden=True,
            page=0,
            page_size=_PAGE,
        )
    )
    if not answer or not answer.ok():
        return None
    found = {str(row.id): _texts(row.configuration) for row in answer.response.tasks}
    return {identity: items[name] for identity, items in found.items() if name in items}


def earlier(project: str, name: str) -> Task | None:
    """The task of that name that an earlier run of ours left."""
    found = Task.query_tasks(
        project_name=project,
        task_name=f"^{re.escape(name)}$",
        task_filter={"type": ["inference"], "order_by": ["-last_update"]},
    )
    return Task.get_task(task_id=str(found[0])) if found else None


def tag(task: Task, model: str, name: str) -> bool:
    """One more tag of a model; False where its others are not known, or it was not taken."""
    answer: Any = task.send(model_calls.GetByIdRequest(model=model))
    if not answer or not answer.ok():
        return False
    tags = list(answer.response.model.tags or ())
    if name in tags:
        return True
    answer = task.send(model_calls.EditRequest(model=model, tags=[*tags, name]))
    return bool(answer and answer.ok())


def _texts(items: Any) -> dict[str, str]:
    return {
        name: str((item.get("value") if isinstance(item, dict) else item.value) or "")
        for name, item in dict(items or {}).items()
    }
