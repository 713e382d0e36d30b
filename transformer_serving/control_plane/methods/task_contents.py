"""tasks.* that change one part of a task: artifacts, models, parameters, configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from transformer_serving.control_plane.call import Call, Handler
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.methods.task_record import (
    advance_iteration,
    artifact_identity,
    artifact_list,
    merge_artifacts,
    model_items,
    require,
    require_editable,
    save,
    section,
)
from transformer_serving.control_plane.schema import check, now
from transformer_serving.control_plane.store import Document, Kind, Transaction

# The section of user properties, which may change whatever the task's status is.
_PROPERTIES = "properties"
_REPLACE = frozenset({"none", "section", "all"})
_MODEL_SIDES = frozenset({"input", "output"})


def add_or_update_artifacts(call: Call) -> Document:
    artifacts = call.objects("artifacts")
    for artifact in artifacts:
        artifact.pop("method", None)
        check("artifacts.type", artifact.get("type"), "text")
    return {"updated": _edit(call, lambda task: merge_artifacts(task, artifacts))}


def delete_artifacts(call: Call) -> Document:
    unwanted = {artifact_identity(artifact) for artifact in call.objects("artifacts")}

    def change(task: Document) -> None:
        execution = section(task, "execution")
        execution["artifacts"] = [
            a for a in artifact_list(execution) if artifact_identity(a) not in unwanted
        ]

    return {"deleted": _edit(call, change)}


def add_or_update_model(call: Call) -> Document:
    name, model, side = call.text("name"), call.text("model"), call.text("type")
    if side not in _MODEL_SIDES:
        raise ApiError(ApiFailure.FIELD_VALUE, "type must be input or output")
    item: Document = {"name": name, "model": model, "updated": now()}
    iteration = call.number("iteration", 0)
    with call.store.writing() as transaction:
        task = require_editable(transaction, call.text("task"), force=True)
        items = model_items(task, side)
        same = [at for at, present in enumerate(items) if present.get("name") == name]
        if same:
            items[same[0]] = item
        else:
            items.append(item)
        advance_iteration(task, iteration)
        save(transaction, task, worker=call.worker)
    return {"updated": 1}


def delete_models(call: Call) -> Document:
    unwanted = {(item.get("type"), item.get("name")) for item in call.objects("models")}
    with call.store.writing() as transaction:
        task = require_editable(transaction, call.text("task"), force=True)
        for side in _MODEL_SIDES:
            section(task, "models")[side] = [
                i for i in model_items(task, side) if (side, i.get("name")) not in unwanted
            ]
        save(transaction, task, report=False)
    return {"updated": 1}


def set_requirements(call: Call) -> Document:
    requirements = call.data.get("requirements")
    check("requirements", requirements, "object")
    with call.store.writing() as transaction:
        task = require(transaction, call.text("task"))
        section(task, "script")["requirements"] = requirements
        save(transaction, task)
    return {"updated": 1, "fields": {"script.requirements": requirements}}


def edit_hyper_params(call: Call) -> Document:
    items = call.objects("hyperparams")
    replace = call.optional_text("replace_hyperparams", "none") or "none"
    if replace not in _REPLACE:
        raise ApiError(ApiFailure.FIELD_VALUE, "replace_hyperparams must be none, section or all")
    wanted: dict[str, dict[str, Document]] = {}
    for item in items:
        parameter = {k: v for k, v in item.items() if k != "method"}
        wanted.setdefault(_section_of(item), {})[_name_of(item)] = parameter

    def change(task: Document) -> None:
        present = section(task, "hyperparams")
        if replace == "all":
            present.clear()
        for name, parameters in wanted.items():
            kept = section(present, name) if replace == "none" else {}
            present[name] = kept | cast(Document, parameters)

    return {"updated": _edit(call, change, anytime=set(wanted) == {_PROPERTIES})}


def delete_hyper_params(call: Call) -> Document:
    keys = call.objects("hyperparams")

    def change(task: Document) -> None:
        present = section(task, "hyperparams")
        for key in keys:
            name = key.get("name")
            if not name:
                present.pop(_section_of(key), None)
            elif _section_of(key) in present:
                section(present, _section_of(key)).pop(str(name), None)

    return {"deleted": _edit(call, change, anytime={_section_of(k) for k in keys} == {_PROPERTIES})}


def get_hyper_params(call: Call) -> Document:
    identities = call.texts("tasks")

    def read(transaction: Transaction) -> list[Document]:
        found = {str(t["id"]): t for t in transaction.find(Kind.TASK, {"id": identities})}
        missing = [identity for identity in identities if identity not in found]
        if missing:
            raise ApiError(ApiFailure.TASK_ID, f"{len(missing)} of {len(identities)} do not exist")
        return [
            {"task": one, "hyperparams": _hyper_params(found[one])}
            for one in dict.fromkeys(identities)
        ]

    return {"params": call.store.read(read)}


def edit_configuration(call: Call) -> Document:
    items = {_name_of(item): item for item in call.objects("configuration")}
    for item in items.values():
        item.pop("method", None)

    def change(task: Document) -> None:
        present = section(task, "configuration")
        if call.flag("replace_configuration"):
            present.clear()
        present |= items

    return {"updated": _edit(call, change)}


def _edit(call: Call, change: Callable[[Document], None], anytime: bool = False) -> int:
    """One atomic change of a task that may be edited; `anytime` skips the status check."""
    with call.store.writing() as transaction:
        identity = call.text("task")
        if anytime:
            task = require(transaction, identity)
        else:
            task = require_editable(transaction, identity, call.flag("force"))
        change(task)
        save(transaction, task, report=not anytime)
    return 1


def _hyper_params(task: Document) -> list[object]:
    sections = cast(dict[str, Document], section(task, "hyperparams"))
    return [item for _, part in sorted(sections.items()) for item in part.values()]


def _section_of(item: Mapping[str, object]) -> str:
    value = item.get("section")
    if not isinstance(value, str) or not value:
        raise ApiError(ApiFailure.MISSING_FIELDS, "hyperparams.section")
    return _PROPERTIES if value.lower() == _PROPERTIES else value


def _name_of(item: Mapping[str, object]) -> str:
    value = item.get("name")
    if not isinstance(value, str) or not value:
        raise ApiError(ApiFailure.MISSING_FIELDS, "name")
    return value


METHODS: Mapping[str, Handler] = {
    "tasks.add_or_update_artifacts": add_or_update_artifacts,
    "tasks.delete_artifacts": delete_artifacts,
    "tasks.add_or_update_model": add_or_update_model,
    "tasks.delete_models": delete_models,
    "tasks.set_requirements": set_requirements,
    "tasks.edit_hyper_params": edit_hyper_params,
    "tasks.delete_hyper_params": delete_hyper_params,
    "tasks.get_hyper_params": get_hyper_params,
    "tasks.edit_configuration": edit_configuration,
}
