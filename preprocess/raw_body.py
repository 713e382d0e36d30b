"""A body that came as bytes: a text, or JSON whose content type does not say so.

Tested by tests/preprocess/test_raw_body.py.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import orjson

from transformer_serving.contract.body_limits import USUAL_ELEMENTS
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.json_text import as_utf8
from transformer_serving.contract.worker.request_context import mirrored_body

# Of an object in any encoding: the mark, blanks, and the zeros beside their bytes. Most texts are
# none by their first byte, and no other is copied to know.
_BEGIN = re.compile(rb"[\xef\xbb\xbf\xfe\xff\0 \t\r\n]*+\{")
_MARK = "\ufeff"


def as_meant(body: Any, fields: Collection[str]) -> Any:
    """The object, of a body of which nobody said what it is, where it has one of the fields; any
    other body as it is.
    """
    if not getattr(body, "is_untyped", False):
        return body
    sent = _object_with(body, fields)
    if sent is None:
        return body
    # What is mirrored stays so: it is not counted.
    return mirrored_body(sent) if getattr(body, "is_golden", False) else sent


def text_of(raw: bytes, fields: Collection[str]) -> str:
    """Raises ServingError (400) for what is no UTF-8, and for JSON with one of the fields: as a
    text it would be answered, and nobody would see why so.
    """
    if _object_with(raw, fields) is not None:
        raise ServingError(
            "malformed_body",
            "this is JSON, and came as another type: send 'Content-Type: application/json'",
        )
    try:
        return raw.decode().removeprefix(_MARK)
    except UnicodeDecodeError:
        raise ServingError("malformed_body", "the raw body is not UTF-8") from None


def no_json(raw: bytes) -> ServingError:
    """The refusal of bytes where a text alone is no body."""
    wrong = ""
    try:
        _object_of(raw)
    except orjson.JSONDecodeError as error:
        wrong = f"the body cannot be read as JSON (at character {error.pos}); "
    return ServingError(
        "malformed_body",
        f"{wrong}the endpoint takes JSON alone: send it with 'Content-Type: application/json'",
    )


def _object_with(raw: bytes, fields: Collection[str]) -> dict[str, Any] | None:
    """The JSON object with one of the fields that the bytes are; None of a text."""
    try:
        sent = _object_of(raw)
    except orjson.JSONDecodeError:
        return None
    return sent if sent is not None and any(name in sent for name in fields) else None


def _object_of(raw: bytes) -> dict[str, Any] | None:
    """The JSON object that the bytes are; None of what begins as none, or is too much to be read.

    Raises orjson.JSONDecodeError.
    """
    if not _BEGIN.match(raw):
        return None
    try:
        text = as_utf8(raw)
    except ServingError:
        return None
    # No gateway has counted them.
    if sum(map(text.count, (b",", b"[", b"{"))) > USUAL_ELEMENTS:
        return None
    # It takes no class of ours.
    sent = orjson.loads(memoryview(text))
    return sent if isinstance(sent, dict) else None
