"""Request bodies: JSON objects, one or a line each, read as tolerantly as the real server does.

Tested by tests/control_plane/test_api.py.
"""

from __future__ import annotations

import json
import math
from typing import cast

import orjson

from transformer_serving.control_plane.errors import ApiError, ApiFailure
from transformer_serving.control_plane.store import Document

_LINES = "application/json-lines"
# The SDK writes this into every body and every event; it is no field.
_LEAKED = "method"


def parse_body(content_type: str, body: bytes) -> tuple[Document, list[Document]]:
    """The request's fields, or for json-lines the batch of objects."""
    if content_type.startswith(_LINES):
        return {}, [_object(line) for line in body.split(b"\n") if line.strip()]
    return (_object(body) if body.strip() else {}), []


def _object(text: bytes) -> Document:
    value = _value(text)
    if not isinstance(value, dict):
        raise ApiError(ApiFailure.VALIDATION, f"body must be object, got {type(value).__name__}")
    value.pop(_LEAKED, None)
    return cast(Document, value)


def _value(text: bytes) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # Python clients also send NaN, and half surrogate pairs from a program's raw output.
        return _tolerant(text)


def _tolerant(text: bytes) -> object:
    try:
        return _storable(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ApiError(ApiFailure.VALIDATION, f"body of {len(text)} bytes is no JSON") from error


def _storable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_storable(item) for item in value]
    if isinstance(value, dict):
        return {cast(str, _storable(key)): _storable(item) for key, item in value.items()}
    return value
