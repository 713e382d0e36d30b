"""The answers of an operation: its own, and every error in the form of its dialect.

Tested by tests/gateway/test_openapi.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.contract.dialects import OURS, Dialect
from transformer_serving.contract.errors import KINDS, ServingError

Schema = dict[str, Any]

OUR_ERROR = "ServingError"
SCHEMAS: dict[str, Schema] = {
    OUR_ERROR: {
        "title": OUR_ERROR,
        "type": "object",
        "required": ["code", "message", "field", "limit", "got"],
        "properties": {
            "code": {"type": "string", "enum": list(KINDS)},
            "message": {"type": "string"},
            "field": {"type": ["string", "null"]},
            "limit": {"type": ["integer", "string", "null"]},
            "got": {"type": ["integer", "string", "null"]},
        },
    }
}
_READY: Schema = {"ready": {"type": "boolean"}}
_NAMED: Schema = {"name": {"type": "string"}, **_READY}
_NOT_READY = {"v2.ready": _READY, "v2.model_ready": _NAMED, "openai.model": _NAMED}
_OURS = {"$ref": f"#/components/schemas/{OUR_ERROR}"}


def responses(answer: Schema, dialect: Dialect = OURS) -> Schema:
    """`answer` is the schema of what comes with status 200."""
    return {"200": described("the answer", answer), **_errors(dialect)}


def described(meaning: str, schema: Schema) -> Schema:
    return {"description": meaning, "content": {"application/json": {"schema": schema}}}


def not_ready(operation: str) -> Schema | None:
    """Of a question whether something is ready: its own answer, with 503; None of others."""
    properties = _NOT_READY.get(operation)
    if properties is None:
        return None
    schema = {"type": "object", "required": list(properties), "properties": properties}
    return described("not ready", schema)


def add_errors(found: Schema) -> None:
    """To the answers of an operation of the host, which knows of 404 and 422 only."""
    for status, ours in _errors(OURS).items():
        response = found.setdefault(status, {"description": ours["description"]})
        content = response.setdefault("content", {}).setdefault("application/json", {})
        host = content.get("schema")
        # Engines that are not ours keep the host's own body.
        content["schema"] = _OURS if host is None else {"anyOf": [host, _OURS]}


def _errors(dialect: Dialect) -> Schema:
    meanings: dict[int, list[str]] = {}
    for kind in KINDS.values():
        status = dialect.status(ServingError(kind.code, kind.meaning))
        meanings.setdefault(status, []).append(kind.meaning)
    schema = _OURS if dialect is OURS else _form_of(dialect)
    return {
        str(status): described("; ".join(meanings[status]), schema) for status in sorted(meanings)
    }


def _form_of(dialect: Dialect) -> Schema:
    """The keys of the dialect's errors, which all have the same."""
    body = dialect.error_body(ServingError("internal", KINDS["internal"].meaning))
    return {"type": "object", "required": list(body), "properties": {name: {} for name in body}}
