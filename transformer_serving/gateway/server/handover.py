"""How a request comes from Granian's threads into the event loop.

Waking another thread takes as long as much of our own code for it. The loop would
be woken for the head, ask for the body, and be woken again for a body that had come with the head
in the first place. So a short body is asked for at once, in the thread that hands the request
over, and the request enters with it. One whose body lets itself be waited for enters without it.
One that the app turns away then and there does not enter at all, where the loop is a `WorkerLoop`.

Tested by tests/gateway/test_http.py and tests/gateway/test_crowd.py.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any

import uvloop

from transformer_serving.gateway.asgi import Message, Receive, Scope

log = logging.getLogger("transformer_serving.gateway")

# Its stub describes another release than the one that is installed.
_native: Any = importlib.import_module("granian._granian")
# Of a body that mostly comes in the packets of its head.
_SHORT_BYTES = 16_384
# The longest that a request waits for its body outside the loop is twice this: nobody who has not
# sent it yet is in a hurry, and the look costs an idle worker nothing that could be measured.
_ROUND_S = 0.2

Answer = Callable[[Any, Receive], Coroutine[Any, Any, None]]
# Of a request's scope and whole body; None lets it in. Called in Granian's thread.
TurnsAway = Callable[[Scope, bytes], Iterable[Message] | None]


class Arrival:
    """A request of which the first message has been asked for, in no task yet."""

    __slots__ = ("_declared", "_is_free", "first", "watcher")

    def __init__(self, watcher: Any, first: Any, declared: int) -> None:
        """`declared` bytes are what the head says of the body."""
        self.watcher = watcher
        self.first: Any = first
        self._declared = declared
        self._is_free = [True]

    def claim(self) -> bool:
        """Whether the caller is the first to say so, of two threads."""
        try:
            return self._is_free.pop()
        except IndexError:
            return False

    def let_go(self) -> None:
        """The claim is another's to make again."""
        self._is_free.append(True)

    def receive(self) -> Awaitable[Message]:
        """ASGI's `receive`: what was asked for already, then what comes after it."""
        first, self.first = self.first, None
        if first is not None:
            asked: Awaitable[Message] = first
            return asked
        following: Awaitable[Message] = self.watcher.proto.receive()
        return following

    def whole_body(self) -> bytes | None:
        """The body where all of it has come with the first message."""
        message = self.first.result()
        body: bytes = message.get("body", b"")
        return body if len(body) == self._declared else None


class Entrance:
    """What is to be called once a request's first message is here.

    The message holds it for ever, and what it holds holds the message: through Granian, which no
    garbage collector sees. So it lets go of the request as soon as that has entered or is closed.
    """

    __slots__ = ("_arrival", "_handover")

    def __init__(self, handover: Handover, arrival: Arrival) -> None:
        self._handover = handover
        self._arrival: Arrival | None = arrival

    def __call__(self, _: object = None) -> None:
        arrival, self._arrival = self._arrival, None
        if arrival is not None:
            self._handover.enter(arrival)

    def is_closed(self) -> bool:
        """Whether the request was turned away; in Granian's thread."""
        arrival = self._arrival
        if arrival is None:
            return False
        try:
            closed = self._handover.turn_away(arrival)
        except Exception:
            # Granian would lose it, and the request with it.
            log.exception("a request could not be turned away before the event loop")
            return False
        if closed:
            self._arrival = None
        return closed


class WorkerLoop(uvloop.Loop):
    """Whose requests may be turned away before it is woken for them."""

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *arguments: Any, context: Context | None = None
    ) -> asyncio.Handle | None:
        """What Granian calls, in its own thread, once it has a message; it keeps no handle."""
        if type(callback) is Entrance and callback.is_closed():
            return None
        return super().call_soon_threadsafe(callback, *arguments, context=context)


class Handover(_native.CallbackScheduler):  # type: ignore[misc]
    """Starts a task for every request in the loop that runs, and is called in another thread."""

    def __new__(cls, answer: Answer, turns_away: TurnsAway | None) -> Handover:
        loop = asyncio.get_running_loop()
        made: Handover = super().__new__(cls, loop, answer, None, None, None)
        return made

    def __init__(self, answer: Answer, turns_away: TurnsAway | None) -> None:
        self._answer = answer
        self._turns_away = turns_away
        self._new: dict[Arrival, None] = {}
        self._older: dict[Arrival, None] = {}
        self._schedule_fn = self._take
        self._round()

    def enter(self, arrival: Arrival) -> None:
        if arrival.claim():
            self._forget(arrival)
            self._start(arrival.watcher, arrival.receive)

    def turn_away(self, arrival: Arrival) -> bool:
        """Answer the request here, where the app has an answer for it.

        It is claimed before the app is asked, which counts what it turns away; one that the loop
        has claimed by then is counted there.
        """
        if self._turns_away is None or not arrival.claim():
            return False
        refusal = None
        try:
            body = arrival.whole_body()
            if body is not None:
                refusal = self._turns_away(arrival.watcher.scope, body)
        finally:
            if refusal is None:
                arrival.let_go()
        if refusal is None:
            return False
        self._forget(arrival)
        self._send(arrival.watcher, refusal)
        return True

    @staticmethod
    def _send(watcher: Any, refusal: Iterable[Message]) -> None:
        try:
            for message in refusal:
                watcher.proto.send(message)
        finally:
            watcher.done()

    def _take(self, watcher: Any) -> None:
        """In Granian's thread, which is also the only one that completes what is asked for here."""
        declared = _short_body(watcher.scope)
        if not declared:
            self._loop.call_soon_threadsafe(
                self._start, watcher, watcher.proto.receive, context=self._ctx
            )
            return
        first = watcher.proto.receive()
        arrival = Arrival(watcher, first, declared)
        self._new[arrival] = None
        first.add_done_callback(Entrance(self, arrival), context=self._ctx)

    def _forget(self, arrival: Arrival) -> None:
        self._new.pop(arrival, None)
        self._older.pop(arrival, None)

    def _start(self, watcher: Any, receive: Receive) -> None:
        watcher.taskref(self._loop.create_task(self._answer(watcher, receive)))

    def _round(self) -> None:
        """Let those in whose body has not come for a whole round: its limits are kept in there."""
        late, self._older, self._new = self._older, self._new, {}
        for arrival in tuple(late):
            self.enter(arrival)
        self._loop.call_later(_ROUND_S, self._round)


def _short_body(scope: Scope) -> int:
    """Bytes of a body that is to be asked for at once, else 0.

    To ask also sends "100 Continue" where that is expected: whoever expects it wants to hear first
    whether the body is wanted.
    """
    headers = dict(scope["headers"])
    length: bytes = headers.get(b"content-length", b"0")
    if b"expect" in headers or not length.isdigit() or len(length) > len(str(_SHORT_BYTES)):
        return 0
    return int(length) if int(length) <= _SHORT_BYTES else 0
