"""models.*: the registry entries that point at model files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import cast

from transformer_serving.control_plane.call import Call, Handler, each, get_all as answer_all
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.methods import projects
from transformer_serving.control_plane.methods.task_record import (
    advance_iteration,
    number_of_users,
    require as require_task,
    save,
)
from transformer_serving.control_plane.query import Filters
from transformer_serving.control_plane.schema import (
    MODEL_FIELDS,
    MODEL_UPDATE_FIELDS,
    archived,
    check,
    new_id,
    new_model,
    now,
    pick,
    tags,
    text_of,
)
from transformer_serving.control_plane.store import Document, Kind, Transaction

_FILTERS = Filters(
    patterns=("name", "comment"),
    lists=(
        "id",
        "user",
        "tags",
        "system_tags",
        "framework",
        "uri",
        "task",
        "project",
        "parent",
    ),
    dates=("created", "last_update", "last_change"),
    equal=("ready",),
    ranges=("last_iteration",),
    texts=("name", "id", "comment", "parent", "task", "project"),
)
# A change of these is a new state of the model itself and moves last_update.
_CONTENT = frozenset(
    {"uri", "framework", "design", "labels", "ready", "metadata", "system_tags", "tags"}
)


def create(call: Call) -> Document:
    for required in ("name", "uri"):
        call.text(required)
    fields = _fields(call, MODEL_FIELDS)
    with call.store.writing() as transaction:
        _check_references(transaction, fields)
        model = new_model(new_id()) | fields
        model["created"] = _after_all(transaction, str(model["created"]))
        transaction.put(Kind.MODEL, model)
        projects.touch(transaction, model.get("project"))
    return {"id": model["id"], "created": True}


def get_by_id(call: Call) -> Document:
    with call.store.reading() as transaction:
        return {"model": require(transaction, call.text("model"))}


def get_all(call: Call) -> Document:
    return answer_all(call, Kind.MODEL, _FILTERS)


def edit(call: Call) -> Document:
    return _change(call, _fields(call, MODEL_FIELDS))


def update(call: Call) -> Document:
    return _change(call, _fields(call, MODEL_UPDATE_FIELDS))


def add_or_update_metadata(call: Call) -> Document:
    items = _metadata(call.objects("metadata"))
    with call.store.writing() as transaction:
        model = require(transaction, call.text("model"))
        present = model.get("metadata")
        keep = isinstance(present, dict) and not call.flag("replace_metadata")
        model["metadata"] = (cast(Document, present) if keep else {}) | items
        _save(transaction, model, content=True)
    return {"updated": 1}


def set_ready(call: Call) -> Document:
    with call.store.writing() as transaction:
        model = require(transaction, call.text("model"))
        if model.get("ready"):
            raise ApiError(ApiFailure.MODEL_READY, data={"model": model["id"]})
        published = _publish_task(transaction, call, model)
        publish(transaction, model)
    return {"updated": 1, "published_task": published}


def delete(call: Call) -> Document:
    with call.store.writing() as transaction:
        model = require(transaction, call.text("model"))
        identity = str(model["id"])
        users = 0 if call.flag("force") else number_of_users(transaction, identity)
        if users:
            raise ApiError(ApiFailure.MODEL_IN_USE, "use force=true", {"num_tasks": users})
        transaction.remove(Kind.MODEL, identity)
    return {"deleted": True, "url": model.get("uri")}


def archive_many(call: Call) -> Document:
    return each(call, lambda t, identity: _set_archived(t, identity, True))


def unarchive_many(call: Call) -> Document:
    return each(call, lambda t, identity: _set_archived(t, identity, False))


def require(transaction: Transaction, identity: str) -> Document:
    model = transaction.get(Kind.MODEL, identity)
    if model is None:
        raise ApiError(ApiFailure.MODEL_ID, f"id={identity[:64]}", {"id": identity[:64]})
    return model


def publish(transaction: Transaction, model: Document) -> None:
    model["ready"] = True
    _save(transaction, model, content=True)


def _after_all(transaction: Transaction, moment: str) -> str:
    """The moment, or just after the newest model where the clock was set back since: which bundle
    came before which, and so what a rollback goes to, is read off these times. Of all models, as a
    new one may not have its project yet.
    """
    ((newest,),) = transaction.rows("SELECT max(json_extract(doc, '$.created')) FROM model")
    if newest is None or str(newest) < moment:
        return moment
    # Callers may write one of their own, of any text.
    with suppress(ValueError, OverflowError):
        return text_of(datetime.fromisoformat(str(newest)) + timedelta(microseconds=1))
    return moment


def _fields(call: Call, table: Mapping[str, str]) -> Document:
    fields = pick(call.data, table)
    if call.data.get("metadata") is not None:
        fields["metadata"] = _metadata(call.objects("metadata"))
    for name in {"tags", "system_tags"} & set(fields):
        fields[name] = sorted(set(tags(fields, name)))
    labels = cast(Document, fields.get("labels", {}))
    for label in labels.values():
        check("labels values", label, "integer")
    return fields


def _change(call: Call, fields: Document) -> Document:
    with call.store.writing() as transaction:
        model = require(transaction, call.text("model"))
        _check_references(transaction, fields)
        if call.data.get("iteration") is not None:
            _report_iteration(transaction, model, fields, call.number("iteration", 0))
        if not fields:
            return {"updated": 0, "fields": {}}
        if "uri" in fields:
            model["ui_cache"] = {}
        model |= fields
        _save(transaction, model, content=bool(_CONTENT & set(fields)))
        projects.touch(transaction, model.get("project"))
    return {"updated": 1, "fields": fields}


def _report_iteration(
    transaction: Transaction, model: Document, fields: Document, iteration: int
) -> None:
    advance_iteration(model, iteration)
    transaction.put(Kind.MODEL, model)
    task = transaction.get(Kind.TASK, str(model.get("task") or fields.get("task")))
    if task is not None:
        advance_iteration(task, iteration)
        save(transaction, task)


def _check_references(transaction: Transaction, fields: Document) -> None:
    if fields.get("project"):
        projects.require(transaction, str(fields["project"]))
    if fields.get("task"):
        require_task(transaction, str(fields["task"]))


def _save(transaction: Transaction, model: Document, content: bool) -> None:
    moment = now()
    model["last_change"] = moment
    if content:
        model["last_update"] = moment
    transaction.put(Kind.MODEL, model)


def _publish_task(transaction: Transaction, call: Call, model: Document) -> Document | None:
    """With publish_task the task that made the model is published along with it."""
    if not call.flag("publish_task") or not model.get("task"):
        return None
    task = transaction.get(Kind.TASK, str(model["task"]))
    if task is None or task["status"] == "published":
        return None
    if task["status"] not in ("stopped", "completed", "failed", "closed") and not call.flag(
        "force_publish_task"
    ):
        raise ApiError(ApiFailure.TASK_STATUS, f"cannot publish a task that is {task['status']}")
    changed: Document = {"status": "published", "published": now(), "status_changed": now()}
    task |= changed
    save(transaction, task)
    return {"id": task["id"], "data": {"updated": 1, "fields": changed}}


def _set_archived(transaction: Transaction, identity: str, wanted: bool) -> Document:
    model = require(transaction, identity)
    model["system_tags"] = archived(model, wanted)
    _save(transaction, model, content=True)
    return {"archived" if wanted else "unarchived": True}


def _metadata(items: list[Document]) -> Document:
    return {
        str(item["key"]): {name: item.get(name) for name in ("key", "type", "value")}
        for item in items
        if item.get("key")
    }


METHODS: Mapping[str, Handler] = {
    "models.create": create,
    "models.get_by_id": get_by_id,
    "models.get_all": get_all,
    "models.edit": edit,
    "models.update": update,
    "models.add_or_update_metadata": add_or_update_metadata,
    "models.set_ready": set_ready,
    "models.delete": delete,
    "models.archive_many": archive_many,
    "models.unarchive_many": unarchive_many,
}
