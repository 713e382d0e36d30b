"""Hostile bodies: JSON, fields, content types and encodings, and what they may get."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Collection
from typing import Any

from tests.attack.raw_heads import BAD, BODY, CHUNKED, OK
from tests.attack.raw_http import SECRET, Raw
from tests.gateway.fuzzing import bomb

_TEXT = SECRET.decode()
_TOO_LARGE = {413}
_LINE = b"POST /serve/ours HTTP/1.1\r\nhost: a\r\nx-request-id: case\r\n"
_JSON = b"application/json"


def sent(
    name: str,
    body: bytes,
    allowed: Collection[int],
    *,
    kind: bytes | None = _JSON,
    coding: bytes | None = None,
    good: bool = False,
) -> Raw:
    raw = _LINE + (b"" if kind is None else b"content-type: " + kind + b"\r\n")
    raw += b"" if coding is None else b"content-encoding: " + coding + b"\r\n"
    return Raw(name, raw + b"content-length: %d\r\n\r\n" % len(body) + body, allowed, good=good)


def no_json() -> list[Raw]:
    forms: dict[str, bytes] = {
        "empty": b"", "a blank": b" ", "cut": b'{"text": "' + SECRET, "a list": b"[]",
        "a number": b"1", "null": b"null", "true": b"true", "a string": b'"' + SECRET + b'"',
        "NaN": b'{"text": NaN}', "Infinity": b'{"timeout_ms": Infinity}',
        "1e999": b'{"text": "a", "timeout_ms": 1e999}',
        "5,000 digits": b'{"text": "a", "timeout_ms": ' + b"9" * 5000 + b"}",
        "a comma at the end": b'{"text": "a",}', "two objects": BODY + BODY,
        "a byte order mark alone": codecs.BOM_UTF8, "two of them": codecs.BOM_UTF8 * 2 + BODY,
        "a byte order mark at the end": BODY + codecs.BOM_UTF8, "single quotes": b"{'text': 'a'}",
        "a comment": b'{"text": "a" /* a */}', "keys without quotes": b"{text: 1}",
        "half of a pair": b'{"text": "\\ud800"}', "a bad escape": b'{"text": "\\x41"}',
        "a line's end in a string": b'{"text": "a\nb"}', "a NUL": b'{"text": "a\0b"}',
        "NULs alone": b"\0" * 100, "no UTF-8": b'{"text": "\xff\xfe"}',
        "an overlong form": b'{"text": "\xc0\xaf"}',
        "UTF-16, cut": BODY.decode().encode("utf-16")[:-1],
        "UTF-16, half of a pair": b'{"text": "'.decode().encode("utf-16") + b"\x00\xd8",
        "UTF-32, beyond Unicode": BODY.decode().encode("utf-32") + b"\xff" * 4,
        "zeros before a number": b'{"timeout_ms": 007}',
        "lists 90,000 deep": b"[" * 90_000, "lists 2,000 deep": b"[" * 2000 + b"]" * 2000,
        "objects 2,000 deep": b'{"text":' * 2000 + b"1" + b"}" * 2000,
        "XML": b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>",
        "a pickle": b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00]\x94K\x01a.",
    }  # fmt: skip
    return [sent(f"body: {name}", body, BAD) for name, body in forms.items()]


def encoded() -> list[Raw]:
    """JSON in the encodings that RFC 4627 had, which are read."""
    forms = {
        "a byte order mark": codecs.BOM_UTF8 + BODY,
        **{name: BODY.decode().encode(name) for name in ("UTF-16", "UTF-16-BE", "UTF-32-LE")},
    }
    return [sent(f"encoding: {name}", body, OK, good=True) for name, body in forms.items()]


def heavy() -> list[Raw]:
    lists = b'{"x": [' + b"[]," * 100_000 + b"[]]}"
    return [
        sent("body: 100,001 lists", lists, _TOO_LARGE),
        sent("body: 100,001 lists in UTF-16", lists.decode().encode("utf-16"), _TOO_LARGE),
        sent("body: a byte more than 2 MB", b'{"text": "' + b"a" * 1_999_989 + b'"}', _TOO_LARGE),
        sent("body: 1.9 MB of commas", b'{"text": "' + b"," * 1_900_000 + b'"}', _TOO_LARGE),
        sent("body: 1.9 MB of backslashes", b'{"text": "' + b"\\\\" * 950_000 + b'"}', _TOO_LARGE),
        sent("body: 1.9 MB of quotes", b'{"x": [' + b'"","' * 475_000, {400, 413}),
        sent("body: a key of 1 MB", b'{"' + b"a" * 1_000_000 + b'": 1}', BAD),
        sent("body: 90,000 equal keys", b"{" + b'"text": 1,' * 90_000 + b'"text": 1}', BAD),
    ]


def fields() -> list[Raw]:
    forms: dict[str, tuple[Any, Collection[int]]] = {
        "none": ({}, BAD),
        "one unknown": ({"text": _TEXT, _TEXT: 1}, BAD),
        "__proto__": ({"text": _TEXT, "__proto__": {}}, BAD),
        "text null": ({"text": None}, BAD),
        "text a number": ({"text": 1}, BAD),
        "text an object": ({"text": {"a": _TEXT}}, BAD),
        "text a list of lists": ({"text": [[_TEXT]]}, BAD),
        "text an empty list": ({"text": []}, BAD),
        "101 texts": ({"text": ["a"] * 101}, _TOO_LARGE),
        "10,001 letters": ({"text": "a" * 10_001}, _TOO_LARGE),
        "more tokens than the model takes": ({"text": f"{_TEXT} " * 40}, _TOO_LARGE),
        "more tokens than the endpoint takes": ({"text": [f"{_TEXT} " * 25] * 80}, _TOO_LARGE),
        "text and inputs": ({"text": _TEXT, "inputs": _TEXT}, BAD),
        "a text of controls": ({"text": "".join(map(chr, range(1, 32)))}, OK),
        "a text of a NUL": ({"text": "\0"}, OK),
        "a text that is a special token": ({"text": "[CLS] [SEP] [PAD]"}, OK),
        "parameters a number": ({"text": _TEXT, "parameters": 5}, BAD),
        "truncate a word": ({"text": _TEXT, "truncate": _TEXT}, BAD),
        "timeout_ms of a word": ({"text": _TEXT, "timeout_ms": _TEXT}, BAD),
        "timeout_ms true": ({"text": _TEXT, "timeout_ms": True}, BAD),
        "timeout_ms 0": ({"text": _TEXT, "timeout_ms": 0}, BAD),
        "timeout_ms -1": ({"text": _TEXT, "timeout_ms": -1}, BAD),
        "timeout_ms 1.5": ({"text": _TEXT, "timeout_ms": 1.5}, BAD),
        "timeout_ms 1": ({"text": _TEXT, "timeout_ms": 1}, {200, 503, 504}),
        "timeout_ms of a day": ({"text": _TEXT, "timeout_ms": 86_400_000}, OK),
        "timeout_ms of more": ({"text": _TEXT, "timeout_ms": 86_400_001}, BAD),
        "timeout_ms 2^63": ({"text": _TEXT, "timeout_ms": 2**63}, BAD),
    }
    return [
        sent(f"field: {name}", json.dumps(body).encode(), ok) for name, (body, ok) in forms.items()
    ]


def kinds() -> list[Raw]:
    """Content types: what is no JSON is a text; the answer to that is another one."""
    return [
        sent("type: none", BODY, OK, kind=None),
        sent("type: text/plain", b"\xff" + SECRET, BAD, kind=b"text/plain"),
        sent("type: JSON's kin", BODY, OK, kind=b"application/vnd.a+json", good=True),
        sent("type: capitals", BODY, OK, kind=b"APPLICATION/JSON", good=True),
        sent("type: UTF-16 announced", BODY, OK, kind=b"application/json; charset=utf-16",
             good=True),
        sent("type: semicolons", BODY, OK, kind=b"application/json;;;;=;", good=True),
        sent("type: no ASCII", BODY, {200, 400}, kind=b"\xff\xfe/\x80"),
        sent("type: 50,000 letters", BODY, {200, 400}, kind=b"a/" + b"b" * 50_000),
        sent("type: 50,000 parameters", BODY, {200, 400, 413},
             kind=b"application/json" + b";a" * 25_000),
        sent("type: a form", b"text=" + SECRET, {200, 400},
             kind=b"application/x-www-form-urlencoded"),
        sent("type: parts without an end", b"--a\r\ncontent-disposition: form-data\r\n\r\n",
             {200, 400}, kind=b"multipart/form-data; boundary=a"),
    ]  # fmt: skip


def codings() -> list[Raw]:
    packed = gzip.compress(BODY)
    spoilt = packed[:-8] + b"\0" * 4 + packed[-4:]
    inner = _LINE + b"content-type: application/json\r\ncontent-encoding: gzip\r\n" + CHUNKED
    in_chunks = b"\r\n\r\n%x\r\n" % len(packed) + packed + b"\r\n0\r\n\r\n"
    refused: dict[str, tuple[bytes, bytes]] = {
        "gzip, cut": (packed[:-5], b"gzip"),
        "gzip, spoilt": (spoilt, b"gzip"),
        "gzip with more behind it": (packed + SECRET, b"gzip"),
        "gzip that is none": (BODY, b"gzip"),
        "gzip of nothing": (b"", b"gzip"),
        "gzip in gzip": (gzip.compress(packed), b"gzip, gzip"),
        "deflate, cut": (zlib.compress(BODY)[:-5], b"deflate"),
        "deflate with more behind it": (zlib.compress(BODY) + SECRET, b"deflate"),
        "deflate that is none": (BODY, b"deflate"),
        "br": (BODY, b"br"),
        "zstd": (BODY, b"zstd"),
        "compress": (BODY, b"compress"),
        "nonsense": (BODY, SECRET),
        "no ASCII": (BODY, b"\xff"),
    }
    return [
        *(sent(f"coding: {name}", *row[:1], BAD, coding=row[1]) for name, row in refused.items()),
        sent("coding: gzip", packed, OK, coding=b"gzip", good=True),
        sent("coding: GZIP", packed, OK, coding=b"GZIP", good=True),
        sent("coding: deflate", zlib.compress(BODY), OK, coding=b"deflate", good=True),
        sent("coding: identity", BODY, OK, coding=b"identity", good=True),
        sent("coding: empty", BODY, {200, 400}, coding=b"", good=True),
        sent("coding: gzip in two members", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]),
             {200, 400}, coding=b"gzip", good=True),
        sent("coding: gzip of 100 MB", bomb(100), _TOO_LARGE, coding=b"gzip"),
        Raw("coding: gzip twice in two headers", _LINE + b"content-encoding: gzip\r\n"
            b"content-encoding: identity\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\n\r\n" % len(packed) + packed, {200, 400}),
        Raw("coding: gzip in chunks", inner + in_chunks, OK),
    ]  # fmt: skip


def body_cases() -> list[Raw]:
    return [*no_json(), *encoded(), *heavy(), *fields(), *kinds(), *codings()]
