"""What goes with a task that is reset or deleted: its events, draft models and files.

Tested by tests/control_plane/test_tasks.py and tests/control_plane/test_task_status.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from transformer_serving.control_plane.addresses import own_path
from transformer_serving.control_plane.call import Call
from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.methods.task_record import (
    DELETED,
    artifact_identity,
    artifact_list,
    inputs_of_others,
    model_items,
    section,
)
from transformer_serving.control_plane.schema import now
from transformer_serving.control_plane.store import Document, Kind, Transaction


@dataclass
class Removal:
    """What one clean-up removed from the database, and the files that belonged to it."""

    deleted_models: int = 0
    updated_models: int = 0
    updated_children: int = 0
    artifact_urls: list[str] = field(default_factory=list)
    model_urls: list[str] = field(default_factory=list)


def clean_up(
    transaction: Transaction, task: Document, force: bool, *, children: bool, models_too: bool
) -> Removal:
    """Removes what the task put out; published models stay, and without force refuse it."""
    identity = str(task["id"])
    removal = Removal(artifact_urls=_output_urls(task))
    offspring = list(transaction.find(Kind.TASK, {"parent": [identity]}))
    if not force and any(child["status"] == "published" for child in offspring):
        raise ApiError(ApiFailure.TASK_NOT_DELETABLE, "has published children, use force=true")
    models = _output_models(transaction, task)
    if not force and any(model.get("ready") for model in models):
        raise ApiError(ApiFailure.TASK_NOT_DELETABLE, "has published models, use force=true")
    drafts = {str(model["id"]) for model in models if models_too and not model.get("ready")}
    # One look for all of them.
    deletable = drafts - inputs_of_others(transaction, identity) if drafts else drafts
    for model in models:
        if model["id"] in deletable:
            transaction.remove(Kind.MODEL, str(model["id"]))
            removal.deleted_models += 1
            _collect_model_url(transaction, removal, model)
        else:
            transaction.put(Kind.MODEL, model | {"task": None, "last_change": now()})
            removal.updated_models += 1
    if children:
        for child in offspring:
            transaction.put(Kind.TASK, child | {"parent": f"{DELETED}{identity}"})
        removal.updated_children = len(offspring)
    transaction.execute("DELETE FROM event WHERE owner = ?", (identity,))
    return removal


def drop_files(call: Call, removal: Removal) -> None:
    """Deletes the files this server holds, after the commit; what it cannot stays listed.

    For a reset only: after tasks.delete the SDK deletes the files itself, and takes one that is
    already gone for a failure.
    """
    if not call.flag("delete_external_artifacts", default=True):
        return
    for urls in (removal.artifact_urls, removal.model_urls):
        urls[:] = [url for url in urls if not _delete_own(call, url)]


def answer_fields(call: Call, removal: Removal) -> Document:
    urls = {
        "artifact_urls": removal.artifact_urls,
        "model_urls": removal.model_urls,
        "event_urls": [],
    }
    return {
        "deleted_models": removal.deleted_models,
        "updated_models": removal.updated_models,
        "updated_children": removal.updated_children,
        "urls": urls if call.flag("return_file_urls") else {},
    }


def keep_input_artifacts(task: Document) -> None:
    """Leaves a reset task only the artifacts that went into it."""
    execution = section(task, "execution")
    execution["artifacts"] = [
        artifact
        for artifact in artifact_list(execution)
        if artifact_identity(artifact)[1] == "input"
    ]


def _delete_own(call: Call, url: str) -> bool:
    path = own_path(url, call.host)
    try:
        return path is not None and call.services.files.delete(path)
    except ApiError:
        return False


def _output_urls(task: Document) -> list[str]:
    uris: Iterable[object] = (
        artifact.get("uri")
        for artifact in artifact_list(section(task, "execution"))
        if artifact_identity(artifact)[1] == "output"
    )
    return sorted({uri for uri in uris if isinstance(uri, str) and uri})


def _output_models(transaction: Transaction, task: Document) -> list[Document]:
    ids = {str(item.get("model")) for item in model_items(task, "output")}
    found = {str(m["id"]): m for m in transaction.find(Kind.MODEL, {"task": [str(task["id"])]})}
    found |= {str(m["id"]): m for m in transaction.find(Kind.MODEL, {"id": sorted(ids)})}
    return list(found.values())


def _collect_model_url(transaction: Transaction, removal: Removal, model: Document) -> None:
    uri = cast(str, model.get("uri") or "")
    # Two models of one service may point at one file: it goes with the last of them.
    if uri and next(transaction.find(Kind.MODEL, {"uri": [uri]}), None) is None:
        removal.model_urls.append(uri)
