"""A task's document: reading it for a change, and writing it with its times kept true.

Tested by tests/control_plane/test_tasks.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.schema import now
from transformer_serving.control_plane.store import Document, Kind, Transaction

ARTIFACT_MODES = frozenset({"input", "output"})
# Before the id of a parent that was deleted: a copy of the child may be given it again.
DELETED = "__DELETED__"
# Which model goes into which task. SQLite reads them in a third of the time that it takes to parse
# every task, and nothing can be written meanwhile.
_INPUTS = """
SELECT task.id AS user, CASE item.type WHEN 'object' THEN json_extract(item.value, '$.model') END
    AS model FROM task, json_each(task.doc, '$.models.input') AS item
"""


def require(transaction: Transaction, identity: str) -> Document:
    task = transaction.get(Kind.TASK, identity)
    if task is None:
        raise ApiError(ApiFailure.TASK_ID, f"id={identity[:64]}", {"id": identity[:64]})
    return task


def require_editable(transaction: Transaction, identity: str, force: bool) -> Document:
    """A task whose contents may change: a draft, or with force also a running one."""
    task = require(transaction, identity)
    allowed = ("created", "in_progress") if force else ("created",)
    if task["status"] not in allowed:
        raise ApiError(
            ApiFailure.TASK_STATUS,
            f"expected {' or '.join(allowed)}, status is {task['status']}",
            {"expected": "created", "status": task["status"]},
        )
    return task


def save(transaction: Transaction, task: Document, report: bool = True, worker: str = "") -> None:
    """Stores a changed task; a report also moves last_update, a mere note only last_change."""
    moment = now()
    task["last_change"] = moment
    if report:
        task["last_update"] = moment
        _count_active_time(task, moment)
    if worker:
        task["last_worker"], task["last_worker_report"] = worker, moment
    transaction.put(Kind.TASK, task)


def section(task: Document, name: str) -> Document:
    """A sub-document to change in place, made when it is missing."""
    value = task.get(name)
    if not isinstance(value, dict):
        value = task[name] = {}
    return cast(Document, value)


def merge_artifacts(task: Document, artifacts: list[Document]) -> None:
    """Adds or replaces artifacts; key and mode together are one artifact's identity."""
    execution = section(task, "execution")
    for artifact in artifacts:
        # The SDK sends no mode for what a task puts out, but reads one when it deletes the task.
        artifact.setdefault("mode", "output")
    kept = {artifact_identity(artifact): artifact for artifact in artifact_list(execution)}
    kept |= {artifact_identity(artifact): artifact for artifact in artifacts}
    execution["artifacts"] = [kept[identity] for identity in sorted(kept)]


def artifact_identity(artifact: Mapping[str, object]) -> tuple[str, str]:
    key, mode = artifact.get("key"), artifact.get("mode") or "output"
    if not isinstance(key, str) or not key:
        raise ApiError(ApiFailure.MISSING_FIELDS, "artifacts.key")
    if mode not in ARTIFACT_MODES:
        raise ApiError(ApiFailure.FIELD_VALUE, "artifacts.mode must be input or output")
    return key, str(mode)


def artifact_list(execution: Mapping[str, object]) -> list[Document]:
    artifacts = execution.get("artifacts")
    return cast(list[Document], artifacts) if isinstance(artifacts, list) else []


def model_items(task: Document, side: str) -> list[Document]:
    """The task's input or output models, as {name, model, updated}; to change in place."""
    models = section(task, "models")
    if not isinstance(models.get(side), list):
        models[side] = []
    return cast(list[Document], models[side])


def inputs_of_others(transaction: Transaction, task: str) -> set[str]:
    """The ids of all models that go into another task than this one."""
    rows = transaction.rows(f"SELECT DISTINCT model FROM ({_INPUTS}) WHERE user != ?", (task,))
    return {str(model) for (model,) in rows}


def number_of_users(transaction: Transaction, model: str) -> int:
    """How many tasks the model goes into."""
    rows = transaction.rows(
        f"SELECT count(DISTINCT user) FROM ({_INPUTS}) WHERE model = ?", (model,)
    )
    return cast(int, rows[0][0])


def advance_iteration(owner: Document, iteration: int) -> None:
    """Of a task or a model."""
    last = owner.get("last_iteration")
    owner["last_iteration"] = max(iteration, last if isinstance(last, int) else 0)


def _count_active_time(task: Document, moment: str) -> None:
    started = task.get("started")
    if task.get("status") == "in_progress" and isinstance(started, str):
        passed = datetime.fromisoformat(moment) - _aware(started)
        task["active_duration"] = max(0, int(passed.total_seconds()))


def _aware(moment: str) -> datetime:
    parsed = datetime.fromisoformat(moment)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
