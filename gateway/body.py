"""A request's body: counted as it comes, inflated under a cap, parsed once.

Nothing is read of a body that declares itself too large, and no more than the limit is ever held
of one that does not: gzip is inflated here, piece by piece, so that a bomb costs its limit only.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Mapping
from email.message import Message as MimeMessage
from functools import lru_cache
from typing import Any, Protocol

import orjson

from contract.errors import ServingError
from contract.fields import kind_of
from gateway.asgi import Headers, Receive

# After a refusal the connection lives on this long, so that a caller still sending does not lose
# the answer to a reset; what comes is dropped.
_LINGER_SECONDS = 2.0
# Each member costs a fresh inflater; real files of many members have one per 64 KiB.
_MAX_MEMBERS = 1024
_GZIP_WBITS = 31


class ClientGoneError(Exception):
    """The caller closed the connection before the whole body had come."""


class Decoder(Protocol):
    """Takes the body as it comes; raises ServingError as soon as it breaks a rule."""

    def feed(self, chunk: bytes) -> None: ...

    def finish(self) -> bytes: ...


class Plain:
    """A body as it is, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = bytearray()

    def feed(self, chunk: bytes) -> None:
        if len(self._held) + len(chunk) > self._limit:
            raise too_large(self._limit)
        self._held += chunk

    def finish(self) -> bytes:
        return bytes(self._held)


class Gzip:
    """A gzip body, one member or several, up to `limit` bytes packed and `limit` unpacked."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._packed = 0
        self._held = bytearray()
        self._members = 0
        self._inflater: Any = None  # None between members, where zero bytes are padding

    def feed(self, chunk: bytes) -> None:
        self._packed += len(chunk)
        if self._packed > self._limit:
            raise too_large(self._limit)
        while chunk:
            chunk = self._begin(chunk) if self._inflater is None else self._inflate(chunk)

    def finish(self) -> bytes:
        if self._inflater is not None:
            raise _bad_gzip()
        return bytes(self._held)

    def _begin(self, chunk: bytes) -> bytes:
        """Start the next member; what of the chunk belongs to it."""
        # Zero bytes may follow a member, never go before the first.
        rest = chunk.lstrip(b"\0") if self._members else chunk
        if rest:
            self._members += 1
            if self._members > _MAX_MEMBERS:
                raise _bad_gzip()
            self._inflater = zlib.decompressobj(_GZIP_WBITS)
        return rest

    def _inflate(self, chunk: bytes) -> bytes:
        """Inflate the chunk; what of it came after the member's end."""
        # One byte more than allowed tells too large from just large enough.
        room = self._limit + 1 - len(self._held)
        try:
            self._held += self._inflater.decompress(chunk, room)
        except zlib.error:
            raise _bad_gzip() from None
        if len(self._held) > self._limit:
            raise too_large(self._limit)
        if not self._inflater.eof:
            return b""
        rest: bytes = self._inflater.unused_data
        self._inflater = None
        return rest


class Incoming:
    """One request's body on its way in. `open` while more of it may come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.open = True

    async def read(self, headers: Mapping[bytes, bytes], limit: int, seconds: float) -> bytes:
        """The whole plain body. Raises ServingError (400, 413), ClientGoneError."""
        check_declared(headers, limit)
        encoding = headers.get(b"content-encoding")
        decoder = None if encoding is None else decoder_for(encoding, limit)
        chunk = await self._next()
        if not self.open and decoder is None:
            if len(chunk) > limit:
                raise too_large(limit, len(chunk))
            return chunk
        decoder = decoder or Plain(limit)
        decoder.feed(chunk)
        if self.open:
            await self._rest(decoder, seconds)
        return decoder.finish()

    async def drop(self) -> None:
        """Let go of what still comes, for a bounded time."""
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while self.open:
                    await self._next()
        except (ClientGoneError, TimeoutError):
            self.open = False

    async def _rest(self, decoder: Decoder, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while self.open:
                    decoder.feed(await self._next())
        except TimeoutError:
            raise ServingError(
                "malformed_body", "the body did not come in time", limit=f"{seconds:g} s"
            ) from None

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        self.open = message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk


def header_values(headers: Headers) -> dict[bytes, bytes]:
    """Headers by their name: of repeated ones the last, of content-encoding all in one."""
    values = dict(headers)
    if b"content-encoding" in values:
        # A second coding must not hide behind the first one.
        every = [value for name, value in headers if name == b"content-encoding"]
        values[b"content-encoding"] = b",".join(every)
    return values


def check_declared(headers: Mapping[bytes, bytes], limit: int) -> None:
    """Refuse a body that says itself that it is too large. Raises ServingError (400, 413)."""
    declared = headers.get(b"content-length")
    if declared is None:
        return
    # int() takes a sign, spaces and underscores, and refuses thousands of digits with an error.
    if not declared.isdigit() or len(declared) > 18:
        raise ServingError("malformed_body", "the content-length is no number of bytes")
    if int(declared) > limit:
        raise too_large(limit, int(declared))


def decoder_for(encoding: bytes, limit: int) -> Decoder:
    """Raises ServingError (400) for codings other than gzip."""
    coding = encoding.strip().lower()
    if coding in (b"", b"identity"):
        return Plain(limit)
    if coding == b"gzip":
        return Gzip(limit)
    raise ServingError(
        "malformed_body",
        "the content-encoding is not known; send the body plain or as gzip",
        field="content-encoding",
        limit="gzip",
    )


@lru_cache(maxsize=64)
def says_json(content_type: bytes | None) -> bool:
    """Whether the host would parse a body of this content type as JSON."""
    if not content_type:
        return False
    mime = MimeMessage()
    mime["content-type"] = content_type.decode("latin-1")
    subtype = mime.get_content_subtype()
    return mime.get_content_maintype() == "application" and (
        subtype == "json" or subtype.endswith("+json")
    )


def parse_object(raw: bytes) -> dict[str, Any]:
    """A JSON object, strictly (RFC 8259: no NaN, no Infinity). Raises ServingError (400)."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _not_json(error.pos) from None
    if not isinstance(body, dict):
        raise _no_object(body)
    return body


def check_acceptable(raw: bytes) -> None:
    """Refuse what the host would refuse, with our body. Raises ServingError (400).

    The host takes what Python's own parser takes, NaN included, and strings beside objects.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        try:
            body = json.loads(raw)
        except json.JSONDecodeError as error:
            raise _not_json(error.pos) from None
        except (ValueError, RecursionError):
            raise _not_json(None) from None
    if not isinstance(body, dict | str):
        raise _no_object(body)


def too_large(limit: int, got: int | None = None) -> ServingError:
    return ServingError("too_large", "the body has too many bytes", limit=limit, got=got)


def _bad_gzip() -> ServingError:
    return ServingError("malformed_body", "the body is not the gzip it says it is")


def _not_json(position: int | None) -> ServingError:
    where = "" if position is None else f" (at character {position})"
    return ServingError("malformed_body", f"the body is not valid JSON{where}")


def _no_object(body: Any) -> ServingError:
    return ServingError("malformed_body", "the body must be a JSON object", got=kind_of(body))
