"""How a request comes from Granian's threads into the event loop.

Waking another thread takes as long as much of our own code for it. The loop would
be woken for the head, ask for the body, and be woken again for a body that had come with the head
in the first place. So a short body is asked for at once, in the thread that hands the request
over, and the request enters with it. One whose body lets itself be waited for enters without it.

Tested by tests/gateway/test_http.py.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from transformer_serving.gateway.asgi import Message, Receive, Scope

# Its stub describes another release than the one that is installed.
_native: Any = importlib.import_module("granian._granian")
# Of a body that mostly comes in the packets of its head.
_SHORT_BYTES = 16_384
# The longest that a request waits for its body outside the loop is twice this: nobody who has not
# sent it yet is in a hurry, and the look costs an idle worker nothing that could be measured.
_ROUND_S = 0.2

Answer = Callable[[Any, Receive], Coroutine[Any, Any, None]]


class Arrival:
    """A request of which the first message has been asked for, in no task yet."""

    __slots__ = ("entered", "first", "watcher")

    def __init__(self, watcher: Any, first: Awaitable[Message]) -> None:
        self.watcher = watcher
        self.first: Awaitable[Message] | None = first
        self.entered = False

    def receive(self) -> Awaitable[Message]:
        """ASGI's `receive`: what was asked for already, then what comes after it."""
        first, self.first = self.first, None
        if first is not None:
            return first
        following: Awaitable[Message] = self.watcher.proto.receive()
        return following


class Handover(_native.CallbackScheduler):  # type: ignore[misc]
    """Starts a task for every request in the loop that runs, and is called in another thread."""

    def __new__(cls, answer: Answer) -> Handover:
        loop = asyncio.get_running_loop()
        made: Handover = super().__new__(cls, loop, answer, None, None, None)
        return made

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._new: dict[Arrival, None] = {}
        self._older: dict[Arrival, None] = {}
        self._schedule_fn = self._take
        self._round()

    def _take(self, watcher: Any) -> None:
        """In Granian's thread, which is also the only one that completes what is asked for here."""
        if not _has_short_body(watcher.scope):
            self._loop.call_soon_threadsafe(
                self._start, watcher, watcher.proto.receive, context=self._ctx
            )
            return
        first = watcher.proto.receive()
        arrival = Arrival(watcher, first)
        self._new[arrival] = None
        first.add_done_callback(partial(self._enter, arrival), context=self._ctx)

    def _enter(self, arrival: Arrival, _: object = None) -> None:
        if not arrival.entered:
            arrival.entered = True
            self._new.pop(arrival, None)
            self._older.pop(arrival, None)
            self._start(arrival.watcher, arrival.receive)

    def _start(self, watcher: Any, receive: Receive) -> None:
        watcher.taskref(self._loop.create_task(self._answer(watcher, receive)))

    def _round(self) -> None:
        """Let those in whose body has not come for a whole round: its limits are kept in there."""
        late, self._older, self._new = self._older, self._new, {}
        for arrival in tuple(late):
            self._enter(arrival)
        self._loop.call_later(_ROUND_S, self._round)


def _has_short_body(scope: Scope) -> bool:
    """Whether to ask for the body at once, which also sends "100 Continue" where that is expected:

    whoever expects it wants to hear first whether the body is wanted.
    """
    headers = dict(scope["headers"])
    length: bytes | None = headers.get(b"content-length")
    return (
        length is not None
        and b"expect" not in headers
        and length.isdigit()
        and len(length) <= len(str(_SHORT_BYTES))
        and 0 < int(length) <= _SHORT_BYTES
    )
