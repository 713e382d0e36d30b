"""tasks.*: creating, reading, editing, copying and deleting task documents."""

from __future__ import annotations

from collections.abc import Mapping

from transformer_serving.control_plane.call import Call, Handler, get_all as answer_all
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.methods import projects
from transformer_serving.control_plane.methods.cleanup import Removal, answer_fields, clean_up
from transformer_serving.control_plane.methods.task_record import (
    DELETED,
    merge_artifacts,
    require,
    save,
    section,
)
from transformer_serving.control_plane.query import Filters
from transformer_serving.control_plane.schema import (
    ARCHIVED,
    MIN_TASK_NAME,
    TASK_FIELDS,
    TASK_TYPES,
    TASK_UPDATE_FIELDS,
    new_id,
    new_task,
    pick,
    tags,
)
from transformer_serving.control_plane.store import Document, Kind, Transaction

_FILTERS = Filters(
    patterns=("name", "comment", "report"),
    lists=(
        "id",
        "user",
        "tags",
        "system_tags",
        "type",
        "status",
        "project",
        "parent",
        "execution.queue",
    ),
    dates=("created", "started", "status_changed", "last_update", "last_change"),
    ranges=("active_duration", "last_iteration"),
    texts=(
        "name",
        "id",
        "comment",
        "report",
        "models.input.model",
        "models.output.model",
        "script.repository",
        "script.entry_point",
    ),
)
# Of these an edit replaces only the keys it names; configuration and hyperparams it replaces whole.
_MERGED = ("execution", "output", "script", "models")
_COPIED = (
    "name",
    "type",
    "execution",
    "script",
    "container",
    "hyperparams",
    "configuration",
    "tags",
    "project",
    "input",
    "comment",
)
# What the SDK and people tell of one run: a copy is neither archived nor run by hand.
_OF_ONE_RUN = frozenset({ARCHIVED, "development"})
# What a person sets on a task says nothing of its run, so it does not move last_update.
_NOTES = frozenset({"name", "comment", "tags", "system_tags", "project", "created"})


def create(call: Call) -> Document:
    fields = pick(call.data, TASK_FIELDS)
    for required in ("name", "type"):
        call.text(required)
    with call.store.writing() as transaction:
        identity = _insert(transaction, fields)
    return {"id": identity}


def get_by_id(call: Call) -> Document:
    with call.store.reading() as transaction:
        return {"task": require(transaction, call.text("task"))}


def get_all(call: Call) -> Document:
    return answer_all(call, Kind.TASK, _FILTERS, projects.shows(call))


def edit(call: Call) -> Document:
    fields = pick(call.data, TASK_FIELDS)
    with call.store.writing() as transaction:
        task = require(transaction, call.text("task"))
        if task["status"] != "created" and not call.flag("force"):
            raise ApiError(
                ApiFailure.TASK_STATUS,
                f"expected created, status is {task['status']}; use force=true",
                {"expected": "created", "status": task["status"]},
            )
        changed = _apply(transaction, task, fields)
        return _saved(transaction, task, changed)


def update(call: Call) -> Document:
    fields = pick(call.data, TASK_UPDATE_FIELDS)
    with call.store.writing() as transaction:
        task = require(transaction, call.text("task"))
        if "output__error" in fields:
            section(task, "output")["error"] = fields.pop("output__error")
        changed = _apply(transaction, task, fields)
        return _saved(transaction, task, changed)


def clone(call: Call) -> Document:
    prefix = "new_task_"
    renamed = {k.removeprefix(prefix): v for k, v in call.data.items() if k.startswith(prefix)}
    overrides = pick(renamed, {k: v for k, v in TASK_FIELDS.items() if k != "models"})
    with call.store.writing() as transaction:
        source = require(transaction, call.text("task"))
        fields = {name: source[name] for name in _COPIED if source.get(name) is not None}
        fields["parent"] = _parent_of_copy(source)
        fields["system_tags"] = [tag for tag in tags(source) if tag not in _OF_ONE_RUN]
        # Without it the SDK uploads nothing of what the copy's run makes.
        fields["output_dest"] = section(source, "output").get("destination") or ""
        fields |= overrides
        fields["execution"] = _recipe(fields.get("execution"), call.data)
        fields["models"] = {"input": _inputs(source), "output": []}
        return {"id": _insert(transaction, fields)}


def delete(call: Call) -> Document:
    with call.store.writing() as transaction:
        removal = _delete(transaction, call, call.text("task"))
    return {"deleted": True, "events": {}, **answer_fields(call, removal)}


def _insert(transaction: Transaction, fields: Document) -> str:
    task = new_task(new_id())
    if fields.get("type") not in TASK_TYPES:
        raise ApiError(
            ApiFailure.FIELD_VALUE, f"type must be one of {', '.join(sorted(TASK_TYPES))}"
        )
    _apply(transaction, task, fields)
    transaction.put(Kind.TASK, task)
    return str(task["id"])


def _apply(transaction: Transaction, task: Document, fields: Document) -> Document:
    """Changes the task by the request's fields; returns what it changed, for the answer."""
    changed = dict(fields)
    _check_references(transaction, changed)
    if "name" in changed:
        changed["name"] = _clean_name(str(changed["name"]))
    if "output_dest" in changed:
        changed["output"] = {"destination": changed.pop("output_dest")}
    for name in _MERGED:
        part = changed.get(name)
        if isinstance(part, dict):
            changed[name] = section(task, name) | part
    for name in {"tags", "system_tags"} & set(changed):
        changed[name] = sorted(set(tags(changed, name)))
    task |= changed
    artifacts = section(task, "execution").pop("artifacts", None)
    merge_artifacts(task, artifacts if isinstance(artifacts, list) else [])
    return changed


def _check_references(transaction: Transaction, fields: Document) -> None:
    if fields.get("project"):
        projects.require(transaction, str(fields["project"]))
    parent = str(fields.get("parent") or "")
    if parent and not parent.startswith(DELETED):
        require(transaction, parent)


def _clean_name(name: str) -> str:
    name = name.strip()
    if len(name) < MIN_TASK_NAME:
        raise ApiError(
            ApiFailure.VALIDATION, f"name: at least {MIN_TASK_NAME} letters, got {len(name)}"
        )
    return name


def _saved(transaction: Transaction, task: Document, changed: Document) -> Document:
    if not changed:
        return {"updated": 0, "fields": {}}
    save(transaction, task, report=not set(changed) <= _NOTES)
    projects.touch(transaction, task.get("project"))
    return {"updated": 1, "fields": changed}


def _delete(transaction: Transaction, call: Call, identity: str) -> Removal:
    task = require(transaction, identity)
    force = call.flag("force")
    if task["status"] != "created" and ARCHIVED not in tags(task) and not force:
        raise ApiError(
            ApiFailure.TASK_NOT_DELETABLE,
            f"status is {task['status']}; archive it or use force=true",
        )
    models_too = call.flag("delete_output_models", default=True)
    removal = clean_up(transaction, task, force, children=True, models_too=models_too)
    transaction.remove(Kind.TASK, identity)
    return removal


def _parent_of_copy(source: Document) -> str:
    parent = str(source.get("parent") or "")
    return parent if parent and not parent.startswith(DELETED) else str(source["id"])


def _recipe(execution: object, data: Mapping[str, object]) -> Document:
    """Neither what the run put out nor the queue that it came from."""
    copy: Document = dict(execution) if isinstance(execution, dict) else {}
    overrides = data.get("execution_overrides")
    if isinstance(overrides, dict):
        copy |= overrides
    artifacts = copy.get("artifacts")
    if isinstance(artifacts, list):
        copy["artifacts"] = [item for item in artifacts if item.get("mode") == "input"]
    copy.pop("queue", None)
    return copy


def _inputs(source: Document) -> list[object]:
    models = source.get("models")
    inputs = models.get("input") if isinstance(models, dict) else None
    return list(inputs) if isinstance(inputs, list) else []


METHODS: Mapping[str, Handler] = {
    "tasks.create": create,
    "tasks.get_by_id": get_by_id,
    "tasks.get_all": get_all,
    "tasks.edit": edit,
    "tasks.update": update,
    "tasks.clone": clone,
    "tasks.delete": delete,
}
