"""A request's body: counted as it comes, inflated under a cap, never held beyond the limits.

Nothing is read of a body that declares itself too large, and no more than the limit is ever held
of one that does not. What all requests hold together has a limit too (`memory.py`), and what
JSON would become is known before it is parsed (`json_body.py`).

Tested by tests/gateway/test_body.py and tests/gateway/test_limits.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from transformer_serving.contract.body_memory import Share
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.settings.setting import Setting
from transformer_serving.gateway.asgi import Headers, Receive
from transformer_serving.gateway.body.content_encoding import Decoder, Plain, decoder_for, too_large
from transformer_serving.gateway.settings import (
    BODY_SECONDS,
    BODY_STALL_SECONDS,
    GatewaySettings,
)

# A refused body is let come and dropped before the refusal's last byte: for so long in all (nginx's
# lingering_time), and without a byte. Who stops sending at the status waits for the latter.
_LINGER_SECONDS = 30.0
_LINGER_STALL_SECONDS = 1.0
# Bytes inflated in the event loop, 0.1 ms of work; a thread costs as much to ask. Inflating lets
# go of the interpreter's lock, so the rest of a larger body holds nobody up. Of packed bytes so
# many, which take 1 ms where they are blocks that hold nothing.
_INLINE, _INLINE_PACKED = 65_536, 8_192
# One: each thread of its own would keep memory of its own, and there is other work for the cores.
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="gunzip")


class ClientGoneError(Exception):
    """The caller closed the connection before the whole body had come."""


class Incoming:
    """One request's body on its way in. `open` while more of it may come; `wanted` once it was
    asked for, which sends "100 Continue" to who expects that.
    """

    def __init__(
        self, receive: Receive, settings: GatewaySettings, *, none_comes: bool = False
    ) -> None:
        self._receive = receive
        self._settings = settings
        self._gave_up = False
        self._awaited: int | None = None
        self.open, self.wanted = not none_comes, False

    async def read(self, headers: Mapping[bytes, bytes], share: Share) -> bytes:
        """The whole plain body, counted in `share`.

        Raises ServingError (400, 413, 503), ClientGoneError.
        """
        limit = self._settings.max_body_bytes
        self._awaited = check_declared(headers, limit)
        encoding = headers.get(b"content-encoding")
        decoder = None if encoding is None else decoder_for(encoding, limit)
        begun = asyncio.get_running_loop().time()
        chunk = await self._first(begun)
        if not self.open and decoder is None:
            if len(chunk) > limit:
                raise too_large(limit, len(chunk))
            share.take(len(chunk), is_here=True)
            return chunk
        decoder = decoder or Plain(limit)
        try:
            await self._decode(decoder, chunk, share)
            if self.open:
                await self._rest(decoder, share, begun + self._settings.body_seconds)
            return decoder.finish()
        finally:
            # An error keeps the frames that it went through, and they this.
            decoder.discard()

    async def drop(self) -> None:
        """Let go of what still comes, for a bounded time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _LINGER_SECONDS
        try:
            async with asyncio.timeout(None) as patience:
                while self.open:
                    patience.reschedule(min(end, loop.time() + _LINGER_STALL_SECONDS))
                    await self._next()
        except (ClientGoneError, TimeoutError):
            self.open = False

    async def _first(self, begun: float) -> bytes:
        """What comes first, which may be never; most come at once, so as little as a timer."""
        task = asyncio.current_task()
        assert task is not None
        stall, whole = self._settings.body_stall_seconds, self._settings.body_seconds
        late = asyncio.get_running_loop().call_at(begun + min(stall, whole), self._give_up, task)
        try:
            return await self._next()
        except asyncio.CancelledError:
            if not self._gave_up or task.uncancel():
                raise
            if whole <= stall:
                raise _too_late(BODY_SECONDS, whole) from None
            raise _too_late(BODY_STALL_SECONDS, stall) from None
        finally:
            late.cancel()

    def _give_up(self, task: asyncio.Task[object]) -> None:
        self._gave_up = True
        task.cancel()

    async def _rest(self, decoder: Decoder, share: Share, end: float) -> None:
        """What comes after that, until `end` on the loop's clock."""
        loop = asyncio.get_running_loop()
        stall = self._settings.body_stall_seconds
        try:
            async with asyncio.timeout(None) as patience:
                while self.open:
                    patience.reschedule(min(end, loop.time() + stall))
                    await self._decode(decoder, await self._next(), share)
        except TimeoutError:
            # By the limit that it was: uvloop's timers may be less than a millisecond early.
            if patience.when() == end:
                raise _too_late(BODY_SECONDS, self._settings.body_seconds) from None
            raise _too_late(BODY_STALL_SECONDS, stall) from None

    async def _decode(self, decoder: Decoder, chunk: bytes, share: Share) -> None:
        """Counted before it is there, then corrected to what it was."""
        before = decoder.held
        most = decoder.most(chunk, _INLINE)
        share.take(most, is_here=not self.open)
        whole = decoder.feed(chunk, _INLINE, _INLINE_PACKED)
        left = most - (decoder.held - before)
        if not whole and left:
            whole = await _beside(decoder, left)
        if not whole:
            rest = decoder.most(b"", None)
            share.take(rest)
            most += rest
            await _beside(decoder, None)
        share.give_back(most - (decoder.held - before))

    async def _next(self) -> bytes:
        self.wanted = True
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        self.open = message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        if self._awaited is not None:
            # A server may tell the end in a message of its own, for which nobody needs to wait.
            self._awaited -= len(chunk)
            self.open = self.open and self._awaited > 0
        return chunk


async def _beside(decoder: Decoder, at_most: int | None) -> bool:
    """Feeds it no more, in the thread."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_THREAD, decoder.feed, b"", at_most)


def header_values(headers: Headers) -> dict[bytes, bytes]:
    """Headers by their name: of repeated ones the last, of content-encoding all in one."""
    values = dict(headers)
    if b"content-encoding" in values:
        # A second coding must not hide behind the first one.
        every = [value for name, value in headers if name == b"content-encoding"]
        values[b"content-encoding"] = b",".join(every)
    return values


def check_declared(headers: Mapping[bytes, bytes], limit: int) -> int | None:
    """The bytes that the body says it has, None where it comes in chunks.

    Raises ServingError (400, 413), for one that says itself that it is too large.
    """
    declared = headers.get(b"content-length")
    if declared is None:
        return None
    # int() takes a sign, spaces and underscores, and refuses thousands of digits with an error.
    if not declared.isdigit() or len(declared) > 18:
        raise ServingError("malformed_body", "the content-length is no number of bytes")
    length = int(declared)
    if length > limit:
        raise too_large(limit, length)
    return None if b"transfer-encoding" in headers else length


def _too_late(setting: Setting, seconds: float) -> ServingError:
    return ServingError(
        "malformed_body",
        f"the body did not come in time; {setting.name} sets how long is waited",
        limit=f"{seconds:g} s",
    )
