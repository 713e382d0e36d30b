"""Whether the callers of the requests that run are still there.

ASGI tells it by a message that somebody must wait for, which costs a task. Most answers come sooner
than anybody leaves, so only a request that is older than a whole round of EVERY_S gets one.
"""

from __future__ import annotations

import asyncio

from transformer_serving.gateway.asgi import Message, Receive

EVERY_S = 0.02


class Caller:
    """One request's caller; `left` is done when the connection was closed."""

    __slots__ = ("_receive", "_watch", "left")

    def __init__(self, receive: Receive) -> None:
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receive = receive
        self._watch: asyncio.Task[Message] | None = None

    def watch(self) -> None:
        """Wait for the end of the connection, in a task."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._wait())

    async def receive(self) -> Message:
        """What comes after the body, for an app that asks: one message may have one reader."""
        self.watch()
        assert self._watch is not None
        return await asyncio.shield(self._watch)

    def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def _wait(self) -> Message:
        message = await self._receive()
        while message["type"] != "http.disconnect":
            message = await self._receive()
        if not self.left.done():
            self.left.set_result(None)
        return message


class Callers:
    """All whose requests run now, in the round in which they came."""

    def __init__(self) -> None:
        self._new: dict[Caller, None] = {}
        self._older: dict[Caller, None] = {}
        self._going = False

    def enter(self, receive: Receive) -> Caller:
        """A request whose body has come whole; to be left when its answer goes."""
        caller = Caller(receive)
        self._new[caller] = None
        if not self._going:
            self._going = True
            asyncio.get_running_loop().call_later(EVERY_S, self._round)
        return caller

    def leave(self, caller: Caller) -> None:
        self._new.pop(caller, None)
        self._older.pop(caller, None)
        caller.stop()

    def _round(self) -> None:
        for caller in self._older:
            caller.watch()
        self._older, self._new = self._new, {}
        self._going = bool(self._older)
        if self._going:
            asyncio.get_running_loop().call_later(EVERY_S, self._round)
