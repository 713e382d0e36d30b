"""The encodings that a body may come in: plain, gzip, deflate; decoded piece by piece under a cap.

Tested by tests/gateway/test_body.py.
"""

from __future__ import annotations

import re
import sys
import zlib
from typing import Any, Protocol

from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.body.buffer import Buffer
from transformer_serving.gateway.settings import MAX_BODY_BYTES

_PIECE = 65_536
# A fresh inflater takes as long as so many packed bytes.
_STEP = 64


class Decoder(Protocol):
    """Takes the body as it comes; raises ServingError as soon as it breaks a rule.

    `held` are the decoded bytes so far; feeding adds at most `most(chunk, at_most)` to them, and
    looks at no more than `work` bytes of what is packed, of which a gzip's member counts for 64 at
    least: packed bytes cost time also where they hold nothing.
    """

    @property
    def held(self) -> int: ...

    def most(self, chunk: bytes, at_most: int | None) -> int: ...

    def feed(self, chunk: bytes, at_most: int | None = None, work: int | None = None) -> bool:
        """Whether all was decoded; where not, one of the two was reached, and another call goes
        on."""
        ...

    def finish(self) -> bytes: ...

    def discard(self) -> None:
        """Let go of what is held, whoever still has the decoder."""
        ...


class Plain:
    """A body as it is, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._whole = Buffer(limit)

    @property
    def held(self) -> int:
        return len(self._whole)

    def most(self, chunk: bytes, at_most: int | None) -> int:
        return len(chunk)

    def feed(self, chunk: bytes, at_most: int | None = None, work: int | None = None) -> bool:
        if len(self._whole) + len(chunk) > self._limit:
            raise too_large(self._limit)
        self._whole.append(chunk)
        return True

    def finish(self) -> bytes:
        return self._whole.whole()

    def discard(self) -> None:
        self._whole.clear()


class Gzip:
    """A gzip body, one member or several, up to `limit` bytes packed and `limit` unpacked."""

    name = "gzip"
    _wbits = 31
    # Each member costs a fresh inflater; real files of many members have one per 64 KiB.
    _max_members = 1024
    # May follow a member, never goes before the first.
    _padding = re.compile(rb"\0*")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._packed = 0
        self._waiting = b""  # packed bytes; those from `_at` on are not inflated yet
        self._at = 0
        self._whole = Buffer(limit + 1)
        self._members = 0
        self._inflater: Any = None  # None between members, where zero bytes are padding

    @property
    def held(self) -> int:
        return len(self._whole)

    def most(self, chunk: bytes, at_most: int | None) -> int:
        # One byte more than allowed tells too large from just large enough.
        room = self._limit + 1 - self.held
        return room if at_most is None else min(at_most, room)

    def feed(self, chunk: bytes, at_most: int | None = None, work: int | None = None) -> bool:
        self._packed += len(chunk)
        if self._packed > self._limit:
            raise too_large(self._limit)
        self._waiting, self._at = self._waiting[self._at :] + chunk, 0
        end = self.held + self.most(b"", at_most)
        left = sys.maxsize if work is None else work
        more = True
        while more and self.held < end and left > 0:
            room, size, before = min(_PIECE, end - self.held), min(_PIECE, left), self._at
            more = self._begin(size) if self._inflater is None else self._inflate(room, size)
            left -= max(_STEP, self._at - before)
        if self.held > self._limit:
            raise too_large(self._limit)
        return not more

    def finish(self) -> bytes:
        if self._inflater is not None:
            raise self._bad()
        return self._whole.whole()

    def discard(self) -> None:
        self._whole.clear()
        self._waiting, self._at = b"", 0

    def _bad(self) -> ServingError:
        return ServingError("malformed_body", f"the body is not the {self.name} it says it is")

    def _begin(self, size: int) -> bool:
        """Pass over at most `size` bytes of padding, or start the next member; whether more may be
        there."""
        padding = self._padding.match(self._waiting, self._at, self._at + size)
        if self._members and padding and padding.end() > self._at:
            self._at = padding.end()
        elif self._at < len(self._waiting):
            self._members += 1
            if self._members > self._max_members:
                raise self._bad()
            self._inflater = zlib.decompressobj(self._wbits)
        return self._at < len(self._waiting)

    def _inflate(self, room: int, size: int) -> bool:
        """Inflate at most `room` bytes, of at most `size`; whether more may be there."""
        # zlib copies what it leaves of these, so they are not all that wait.
        packed = memoryview(self._waiting)[self._at : self._at + size]
        try:
            piece = self._inflater.decompress(packed, room)
        except zlib.error:
            raise self._bad() from None
        self._whole.append(piece)
        ended = self._inflater.eof
        rest = self._inflater.unused_data if ended else self._inflater.unconsumed_tail
        self._at += len(packed) - len(rest)
        if ended:
            self._inflater = None
        return self._at < len(self._waiting) or (not ended and len(piece) == room)


class Deflate(Gzip):
    """A body of HTTP's deflate: one stream of zlib, and nothing after it."""

    name = "deflate"
    _wbits = 15
    _max_members = 1
    _padding = re.compile(b"")


_PACKED = {kind.name.encode(): kind for kind in (Gzip, Deflate)}


def decoder_for(encoding: bytes, limit: int) -> Decoder:
    """Raises ServingError (400) for codings other than gzip and deflate."""
    coding = encoding.strip().lower()
    if coding in (b"", b"identity"):
        return Plain(limit)
    if (packed := _PACKED.get(coding)) is not None:
        return packed(limit)
    raise ServingError(
        "malformed_body",
        "the content-encoding is not known; send the body plain, as gzip or as deflate",
        field="content-encoding",
        limit="gzip, deflate",
    )


def too_large(limit: int, got: int | None = None) -> ServingError:
    return ServingError(
        "too_large",
        f"the body has too many bytes; {MAX_BODY_BYTES.name} sets how many are taken",
        limit=limit,
        got=got,
    )
