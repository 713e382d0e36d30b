"""The errors of ours in the host's OpenAPI document, which knows of 404 and 422 only.

Tested by tests/gateway/test_both_ways.py.
"""

from __future__ import annotations

from typing import Any

from transformer_serving.contract.errors import KINDS

_NAME = "ServingError"
_OURS = {"$ref": f"#/components/schemas/{_NAME}"}
_SCHEMA = {
    "title": _NAME,
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


def describe_errors(app: Any) -> None:
    """Let the app's document, which FastAPI makes once and keeps, name every status of ours."""
    document = app.openapi()
    document.setdefault("components", {}).setdefault("schemas", {})[_NAME] = _SCHEMA
    for path, operations in document["paths"].items():
        if path.startswith("/serve/"):
            for operation in operations.values():
                _add(operation.setdefault("responses", {}))


def _add(responses: dict[str, Any]) -> None:
    for status in sorted({kind.status for kind in KINDS.values()}):
        meanings = "; ".join(kind.meaning for kind in KINDS.values() if kind.status == status)
        response = responses.setdefault(str(status), {"description": meanings})
        content = response.setdefault("content", {}).setdefault("application/json", {})
        host = content.get("schema")
        # Engines that are not ours keep the host's own body.
        content["schema"] = _OURS if host is None else {"anyOf": [host, _OURS]}
