"""tasks.* that move a task along its life: started, stopped, completed, reset, published."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from transformer_serving.control_plane.call import Call, Handler
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.methods import projects
from transformer_serving.control_plane.methods.cleanup import (
    answer_fields,
    clean_up,
    drop_files,
    keep_input_artifacts,
)
from transformer_serving.control_plane.methods.models import publish as publish_model
from transformer_serving.control_plane.methods.task_record import (
    model_items,
    require,
    save,
    section,
)
from transformer_serving.control_plane.schema import now
from transformer_serving.control_plane.store import Document, Kind, Transaction

# From each status the ones that may follow without force, as in the real server.
_NEXT: Mapping[str, frozenset[str]] = {
    "created": frozenset({"queued", "in_progress"}),
    "queued": frozenset({"created", "in_progress", "stopped"}),
    "in_progress": frozenset({"stopped", "failed", "created", "completed"}),
    "stopped": frozenset(
        {"closed", "created", "failed", "queued", "in_progress", "published", "completed"}
    ),
    "closed": frozenset({"created", "failed", "published", "stopped"}),
    "failed": frozenset({"created", "stopped", "published", "queued"}),
    "completed": frozenset({"published", "in_progress", "created"}),
    "published": frozenset(),
}


def started(call: Call) -> Document:
    def begin(task: Document) -> Document:
        return {"started": task.get("started") or now()}

    return {"started": 1, **_change(call, "in_progress", begin)}


def stopped(call: Call) -> Document:
    return _change(call, "stopped", _ended)


def failed(call: Call) -> Document:
    return _change(call, "failed", _ended)


def completed(call: Call) -> Document:
    answer = _change(call, "completed", _ended)
    published = 0
    if call.flag("publish"):
        with call.store.writing() as transaction:
            _publish(transaction, call, require(transaction, call.text("task")))
        published = 1
    return {**answer, "published": published}


def publish(call: Call) -> Document:
    with call.store.writing() as transaction:
        return _publish(transaction, call, require(transaction, call.text("task")))


def reset(call: Call) -> Document:
    force = call.flag("force")
    with call.store.writing() as transaction:
        task = require(transaction, call.text("task"))
        if task["status"] == "published" and not force:
            raise ApiError(ApiFailure.TASK_STATUS, "status is published; use force=true")
        models_too = call.flag("delete_output_models", default=True)
        removal = clean_up(transaction, task, force, children=False, models_too=models_too)
        _forget_run(task, clear_all=call.flag("clear_all"))
        answer = _transition(transaction, task, "created", True, "reset", "reset", {})
    drop_files(call, removal)
    return {
        **answer,
        **answer_fields(call, removal),
        "deleted_indices": [],
        "dequeued": {},
        "events": {},
        "frames": {},
    }


def ping(call: Call) -> Document:
    """Says that the task is alive; an unknown task is no error, as in the real server."""
    with call.store.writing() as transaction:
        task = transaction.get(Kind.TASK, call.text("task"))
        if task is not None:
            save(transaction, task, worker=call.worker)
    return {}


def _change(call: Call, status: str, extra: Callable[[Document], Document]) -> Document:
    with call.store.writing() as transaction:
        task = require(transaction, call.text("task"))
        return _transition(
            transaction,
            task,
            status,
            call.flag("force"),
            call.optional_text("status_reason"),
            call.optional_text("status_message"),
            extra(task) if task["status"] != status else {},
        )


def _transition(
    transaction: Transaction,
    task: Document,
    status: str,
    force: bool,
    reason: str,
    message: str,
    extra: Document,
) -> Document:
    current = str(task["status"])
    if not force and status != current and status not in _NEXT.get(current, frozenset()):
        raise ApiError(
            ApiFailure.TASK_STATUS,
            f"{current} cannot become {status} without force",
            {"current_status": current, "new_status": status},
        )
    fields: Document = {
        "status": status,
        "status_reason": reason,
        "status_message": message,
        "status_changed": now(),
        **extra,
    }
    task |= fields
    save(transaction, task)
    projects.touch(transaction, task.get("project"))
    return {"updated": 1, "fields": fields}


def _ended(_task: Document) -> Document:
    return {"completed": now()}


def _publish(transaction: Transaction, call: Call, task: Document) -> Document:
    answer = _transition(
        transaction,
        task,
        "published",
        call.flag("force"),
        call.optional_text("status_reason"),
        call.optional_text("status_message"),
        {"published": now()},
    )
    outputs = model_items(task, "output")
    if outputs and call.flag("publish_model", default=True):
        model = transaction.get(Kind.MODEL, str(outputs[-1].get("model")))
        if model is not None and not model.get("ready"):
            publish_model(transaction, model)
    return answer


def _forget_run(task: Document, clear_all: bool) -> None:
    for name in ("last_worker", "last_worker_report", "started", "completed", "published"):
        task.pop(name, None)
    task.pop("active_duration", None)
    task |= {"last_iteration": 0, "last_metrics": {}, "runtime": {}}
    section(task, "models")["output"] = []
    output = section(task, "output")
    output.pop("result", None)
    output.pop("error", None)
    if clear_all:
        task |= {"execution": {"artifacts": []}, "script": {}}
    else:
        section(task, "execution").pop("queue", None)
        keep_input_artifacts(task)


METHODS: Mapping[str, Handler] = {
    "tasks.started": started,
    "tasks.stopped": stopped,
    # Stopping asks a worker to stop; there are none here, so it takes effect at once.
    "tasks.stop": stopped,
    "tasks.failed": failed,
    "tasks.completed": completed,
    "tasks.publish": publish,
    "tasks.reset": reset,
    "tasks.ping": ping,
}
