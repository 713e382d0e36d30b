"""JSON bodies: what they would cost is known before they are parsed, and parsed they are once."""

from __future__ import annotations

import asyncio
import json
import time
from email.message import Message as MimeMessage
from functools import lru_cache
from typing import Any

import orjson

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of
from transformer_serving.contract.json_text import as_utf8
from transformer_serving.gateway.settings import MAX_BODY_ELEMENTS

# orjson's own, with its words; Python's parser has another one in each release.
_MAX_DEPTH = 1024
_TOO_DEEP = "depth limit"
_TOO_LARGE = "number is infinity"
# It gives the first character's place for such bytes, wherever they are.
_NOT_UTF8 = "not valid UTF-8"
# Bytes from which on bodies are parsed one after the other, and between them the event loop is
# others' for as long as the last one took: an answer takes several of its turns. A thread gains
# nothing: orjson keeps the interpreter's lock (docs/decisions/gateway.md).
_LARGE = 65_536


@lru_cache(maxsize=64)
def says_json(content_type: bytes | None) -> bool:
    """Whether the host would parse a body of this content type as JSON."""
    if not content_type:
        return False
    kind, subtype = _parts_of(content_type)
    return kind == "application" and (subtype == "json" or subtype.endswith("+json"))


@lru_cache(maxsize=64)
def may_be_json(content_type: bytes | None) -> bool:
    """Whether a body of this content type, which is not parsed for it, may be JSON: none at all,
    as many clients send that write their JSON themselves, or another name for JSON's.
    """
    if not content_type:
        return True
    _, subtype = _parts_of(content_type)
    return subtype in ("json", "x-json") or subtype.endswith("+json")


def _parts_of(content_type: bytes) -> tuple[str, str]:
    mime = MimeMessage()
    mime["content-type"] = content_type.decode("latin-1")
    return mime.get_content_maintype(), mime.get_content_subtype()


class Parser:
    """Bodies as process_request takes them."""

    def __init__(self, max_elements: int) -> None:
        self._max_elements = max_elements
        self._turn = asyncio.Lock()
        self._others_until = 0.0

    async def parse(self, raw: bytes, *, is_json: bool, ours: bool) -> Any:
        """The object, where JSON is for an endpoint of ours; else the bytes.

        Raises ServingError (400, 413).
        """
        if not is_json or len(raw) < _LARGE:
            return self._parse(raw, is_json, ours)
        async with self._turn:
            await asyncio.sleep(max(0.0, self._others_until - time.monotonic()))
            begun = time.monotonic()
            try:
                return self._parse(raw, is_json, ours)
            finally:
                ended = time.monotonic()
                self._others_until = ended + (ended - begun)

    def _parse(self, raw: bytes, is_json: bool, ours: bool) -> Any:
        if ours and not raw:
            raise ServingError("malformed_body", "the body is empty")
        if not is_json:
            return raw
        text = as_utf8(raw)
        check_elements(text, self._max_elements)
        if ours:
            return parse_object(text)
        if raw:
            check_acceptable(text)
        return raw


def check_elements(raw: bytes, limit: int) -> None:
    """Refuse JSON that would become too many objects. Raises ServingError (413).

    An element is a comma, '[' or '{' outside of strings: each value but the first has one before
    it. Most bodies are cleared by their length or by a count over all bytes; only where that says
    too many, as a text full of commas makes it, are the strings taken out first.
    """
    # Two elements are at least three bytes, '[]' with a comma being the shortest that cost memory.
    if 2 * len(raw) <= 3 * limit or _marks(raw) <= limit:
        return
    # Only strings have backslashes, and of a row of them the first begins a pair.
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in raw else raw
    # Of strings next to each other all but one have a comma or a colon, keys only the latter.
    if plain.count(b'"') > 4 * (limit + 1):
        raise _too_many(limit, None)
    got = _marks(b"".join(plain.split(b'"')[::2]))
    if got > limit:
        raise _too_many(limit, got)


def parse_object(raw: bytes) -> dict[str, Any]:
    """A JSON object, strictly (RFC 8259: no NaN, no Infinity). Raises ServingError (400)."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _refused(error) from None
    if not isinstance(body, dict):
        raise _no_object(body)
    return body


def check_acceptable(raw: bytes) -> None:
    """Refuse what the host would refuse, with our body. Raises ServingError (400).

    The host takes what Python's own parser takes, NaN included, and strings beside objects.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        body = _as_python(raw, error)
    if not isinstance(body, dict | str):
        raise _no_object(body)


def _as_python(raw: bytes, strict: orjson.JSONDecodeError) -> Any:
    if _TOO_DEEP in strict.msg:
        raise _refused(strict)
    try:
        return json.loads(raw)
    except json.JSONDecodeError as error:
        raise _refused(error) from None
    except (ValueError, RecursionError):
        raise _refused(strict) from None


def _marks(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")


def _too_many(limit: int, got: int | None) -> ServingError:
    return ServingError(
        "too_large",
        "the JSON has too many lists, objects and values; send several requests, or raise "
        f"{MAX_BODY_ELEMENTS.name}",
        limit=limit,
        got=got,
    )


def _refused(error: json.JSONDecodeError) -> ServingError:
    if _TOO_DEEP in error.msg:
        return ServingError("malformed_body", "the body is nested too deeply", limit=_MAX_DEPTH)
    if _NOT_UTF8 in error.msg:
        return ServingError("malformed_body", "the body is not UTF-8; send it as UTF-8")
    wrong = "holds too large a number" if _TOO_LARGE in error.msg else "is not valid JSON"
    return ServingError("malformed_body", f"the body {wrong} (at character {error.pos})")


def _no_object(body: Any) -> ServingError:
    return ServingError("malformed_body", "the body must be a JSON object", got=kind_of(body))
