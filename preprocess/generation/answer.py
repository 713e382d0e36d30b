"""A stream of server-sent events as a Response, which the host passes through.

Tested by tests/preprocess/generation/test_text_generation.py and
tests/gateway/test_slow_readers.py.
"""

from __future__ import annotations

import asyncio
import time
from asyncio import Future
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import StreamingResponse

from transformer_serving.contract.errors import ServingError, caller_left, too_late
from transformer_serving.contract.worker.durations import OK
from transformer_serving.contract.worker.fault_lines import FIRST_SERVER_FAULT
from transformer_serving.contract.worker.request_context import current_caller, why_nobody_waits

# For the event that the deadline has come, behind what is on its way then.
_LAST_WORDS_S = 5.0
# For the event that says why, where nothing was on its way or that was given up.
_LEAVING_S = 0.5
# What ended it where no event could say so; never raised.
_LEFT, _LATE = caller_left(), too_late()
_EVENTS = {
    "cache-control": "no-cache",
    # nginx and its like would gather events otherwise.
    "x-accel-buffering": "no",
}


class StreamAnswer(StreamingResponse):
    """Sends `events` until they end, the caller leaves or, soon after `deadline`, its last words
    have had their time. `close` is called then, and with the code `deadline` when that comes.

    To be run also for a caller that has gone: nothing else closes it. `fault` gives the error of an
    error event, `tell` that event where `events` do not come to one; `ended` is told once what it
    ended with, None where it is whole.
    """

    # The gateway watches the connection for as long as the answer takes.
    is_stream = True

    def __init__(
        self, events: AsyncIterator[bytes], headers: dict[str, str],
        close: Callable[..., None], deadline: float,
        fault: Callable[[], ServingError | None] = lambda: None,
        ended: Callable[[ServingError | None], None] = lambda error: None,
        tell: Callable[[ServingError], bytes] = lambda error: b"",
    ) -> None:  # fmt: skip
        super().__init__(events, 200, {**headers, **_EVENTS}, "text/event-stream")
        self._deadline = deadline
        self._fault = fault
        self._tell = tell
        self._ended_by: ServingError | None = None
        self._close = close
        self._ended: Callable[[ServingError | None], None] | None = ended

    @property
    def error(self) -> ServingError | None:
        return self._fault() or self._ended_by

    @property
    def code(self) -> str:
        """What it was in the end: its status left before the first event."""
        error = self.error
        return OK if error is None else error.kind.code

    def close(self) -> None:
        self._close()
        told, self._ended = self._ended, None
        if told is not None:
            told(self.error)

    def keys(self) -> tuple[()]:
        """For clearml-serving's metric logging, which takes it for a dict."""
        return ()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Not starlette's own: servers differ in what `send` does once the caller has gone."""
        sending = asyncio.ensure_future(self.stream_response(send))
        leaving = asyncio.ensure_future(_left(receive))
        left_s = max(0.0, self._deadline - time.monotonic())
        try:
            if not await _first_of(sending, leaving, left_s):
                # A caller who reads slowly, or nothing, keeps no seat at the engine beyond it.
                self._close(_LATE.kind.code)
                await _first_of(sending, leaving, _LAST_WORDS_S)
            if sending.done():
                # An OSError is a caller that left.
                with suppress(OSError):
                    self._ended_by = _LEFT
                    sending.result()
                    self._ended_by = None
            else:
                self._ended_by = _why_left() if leaving.done() else _LATE
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self.close()
        await self._tell_who_stays(send)

    async def _tell_who_stays(self, send: Any) -> None:
        """Where it was not the caller that left: its stream is not to look whole.

        Two messages, as a body of which the last one is given up ends all the same under Granian;
        one that has none is cut.
        """
        error = self._ended_by
        if error is None or error.kind.status < FIRST_SERVER_FAULT:
            return
        event = {"type": "http.response.body", "body": self._tell(error), "more_body": True}
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LEAVING_S):
                await send(event)
                await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _first_of(sending: Future[Any], leaving: Future[Any], limit_s: float) -> bool:
    """Whether one of them is done within the seconds."""
    done, _ = await asyncio.wait(
        {sending, leaving}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
    )
    return bool(done)


def _why_left() -> ServingError:
    caller = current_caller.get()
    return _LEFT if caller is None or not caller.done() else why_nobody_waits(caller)


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
