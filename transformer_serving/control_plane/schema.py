"""Field types of requests and the shape of new documents, after the API's v2.23 schema.

Tested by tests/control_plane/test_api.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import cast

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.store import Document

COMPANY = "9d7c1f5e3b8a46c2a0e4d6f8b1c3a5e7"
USER = "4e2a8c6f0d1b4379b5d7f9a1c3e5b7d9"
USER_NAME = "operator"

ARCHIVED = "archived"

MIN_TASK_NAME = 3
MIN_PROJECT_NAME = 3


def _is_list_of(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_CHECKS: dict[str, Callable[[object], bool]] = {
    "text": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "list of text": _is_list_of(str),
    "list of objects": _is_list_of(dict),
    "object": lambda value: isinstance(value, dict),
    "object of objects": lambda value: (
        isinstance(value, dict) and all(isinstance(item, dict) for item in value.values())
    ),
}

TASK_TYPES = frozenset(
    (
        "training",
        "testing",
        "inference",
        "data_processing",
        "application",
        "monitor",
        "controller",
        "report",
        "optimizer",
        "service",
        "qc",
        "custom",
        "dataset_import",
        "annotation",
        "annotation_manual",
    )
)

_COMMON = {
    "name": "text",
    "comment": "text",
    "tags": "list of text",
    "system_tags": "list of text",
    "project": "text",
    "parent": "text",
}
TASK_FIELDS: Mapping[str, str] = {
    **_COMMON,
    "type": "text",
    "input": "object",
    "output_dest": "text",
    "execution": "object",
    "script": "object",
    "container": "object",
    "models": "object",
    "runtime": "object",
    "hyperparams": "object of objects",
    "configuration": "object of objects",
}
TASK_UPDATE_FIELDS: Mapping[str, str] = {
    **_COMMON,
    "created": "text",
    "status": "text",
    "status_reason": "text",
    "status_message": "text",
    "output__error": "text",
}
MODEL_FIELDS: Mapping[str, str] = {
    **_COMMON,
    "uri": "text",
    "framework": "text",
    "design": "object",
    "labels": "object",
    "ready": "boolean",
    "task": "text",
}
MODEL_UPDATE_FIELDS: Mapping[str, str] = {
    **_COMMON,
    "created": "text",
    "uri": "text",
    "ready": "boolean",
    "task": "text",
    "ui_cache": "object",
}
PROJECT_FIELDS: Mapping[str, str] = {
    "name": "text",
    "description": "text",
    "tags": "list of text",
    "system_tags": "list of text",
    "default_output_destination": "text",
}


def now() -> str:
    return text_of(datetime.now(UTC))


def text_of(moment: datetime) -> str:
    """As documents hold it: in the order of time, too, where texts are compared."""
    return moment.isoformat(timespec="microseconds")


def new_id() -> str:
    return uuid.uuid4().hex


def check(name: str, value: object, kind: str) -> None:
    if not _CHECKS[kind](value):
        raise ApiError(ApiFailure.FIELD_TYPE, f"{name} must be {kind}, got {type(value).__name__}")


def pick(data: Mapping[str, object], fields: Mapping[str, str]) -> Document:
    """The known fields of a request, checked; null counts as absent, the unknown is ignored."""
    picked: Document = {}
    for name, kind in fields.items():
        value = data.get(name)
        if value is not None:
            check(name, value, kind)
            picked[name] = value
    return picked


def tags(document: Document, field: str = "system_tags") -> list[str]:
    """The tags of a stored document."""
    return cast(list[str], document.get(field) or [])


def archived(document: Document, wanted: bool) -> list[str]:
    """The document's system tags with or without the archive's."""
    others = set(tags(document)) - {ARCHIVED}
    return sorted(others | ({ARCHIVED} if wanted else set()))


def _new_document(identity: str, moment: str) -> Document:
    """What a task and a model begin with alike."""
    return {
        "id": identity,
        "company": COMPANY,
        "user": USER,
        "created": moment,
        "last_update": moment,
        "last_change": moment,
    }


def new_task(identity: str) -> Document:
    moment = now()
    return {
        **_new_document(identity, moment),
        "status": "created",
        "status_reason": "",
        "status_message": "",
        "status_changed": moment,
        "comment": "",
        "tags": [],
        "system_tags": [],
        # Without an output section the SDK refuses to upload anything.
        "output": {"destination": ""},
        "execution": {"artifacts": []},
        "script": {},
        "container": {},
        "models": {"input": [], "output": []},
        "hyperparams": {},
        "configuration": {},
        "runtime": {},
        "last_iteration": 0,
        "last_metrics": {},
    }


def new_model(identity: str) -> Document:
    moment = now()
    return {
        **_new_document(identity, moment),
        "comment": "",
        "tags": [],
        "system_tags": [],
        "design": {},
        "labels": {},
        "metadata": {},
        "ui_cache": {},
        "ready": False,
        "last_iteration": 0,
    }


def new_project(identity: str, name: str) -> Document:
    moment = now()
    return {
        "id": identity,
        "name": name,
        "basename": name.rsplit("/", 1)[-1],
        "company": COMPANY,
        "user": USER,
        "created": moment,
        "last_update": moment,
        "description": "",
        "tags": [],
        "system_tags": [],
        "default_output_destination": "",
    }
