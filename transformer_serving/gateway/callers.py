"""Whether the callers of the requests that run are still there, and the worker for them.

ASGI tells it by a message that somebody must wait for, which costs a task. Most answers come sooner
than anybody leaves, so only a request that is older than a whole round of EVERY_S gets one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from transformer_serving.gateway.asgi import Message, Receive

EVERY_S = 0.02


class Caller:
    """One request's caller; `left` is done when the connection was closed, and with an exception
    where the worker leaves before the answer.
    """

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

    async def receive_end(self) -> Message:
        """The same for a stream of ours, to which the worker that leaves is an end, too."""
        self.watch()
        assert self._watch is not None
        awaited: set[asyncio.Future[Any]] = {self._watch, self.left}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        return self._watch.result() if self._watch.done() else {"type": "http.disconnect"}

    def give_up(self) -> None:
        """The worker leaves: whoever works for the caller is to stop."""
        if not self.left.done():
            self.left.set_exception(ConnectionAbortedError())
            # Looked at: where nobody else does, asyncio says so.
            self.left.exception()

    @property
    def has_left(self) -> bool:
        return self.left.done() and self.left.exception() is None

    def is_missed_by(self, response: Response) -> bool:
        """Whether an answer says that its caller left, where it is the worker that leaves: so does
        that of code which knows of no other end, as of older kits.
        """
        given_up = self.left.done() and not self.has_left
        return given_up and getattr(response, "code", None) == "left"

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
    """All whose requests run now, in the round in which they came until they are watched."""

    def __init__(self) -> None:
        self._new: dict[Caller, None] = {}
        self._older: dict[Caller, None] = {}
        self._watched: dict[Caller, None] = {}
        self._going = self._given_up = False

    def enter(self, receive: Receive) -> Caller:
        """A request whose body has come whole; to be left when its answer goes."""
        caller = Caller(receive)
        if self._given_up:
            caller.give_up()
        self._new[caller] = None
        if not self._going:
            self._going = True
            asyncio.get_running_loop().call_later(EVERY_S, self._round)
        return caller

    def leave(self, caller: Caller) -> None:
        self._new.pop(caller, None)
        self._older.pop(caller, None)
        self._watched.pop(caller, None)
        caller.stop()

    def give_up(self) -> None:
        """Those that are here, and whoever still comes."""
        self._given_up = True
        for caller in (*self._watched, *self._older, *self._new):
            caller.give_up()

    def _round(self) -> None:
        for caller in self._older:
            caller.watch()
        self._watched |= self._older
        self._older, self._new = self._new, {}
        self._going = bool(self._older)
        if self._going:
            asyncio.get_running_loop().call_later(EVERY_S, self._round)
