"""A stream of server-sent events as a Response, which the host passes through.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import StreamingResponse

from transformer_serving.contract.errors import ServingError, caller_left, too_late
from transformer_serving.contract.worker.durations import OK
from transformer_serving.contract.worker.fault_lines import FIRST_SERVER_FAULT
from transformer_serving.contract.worker.request_context import current_caller, why_nobody_waits

# For what is already on its way when the deadline comes.
_LAST_WORDS_S = 5.0
# For the event that the worker leaves, where its caller reads slowly.
_LEAVING_S = 0.5
# What ended it where no event could say so; never raised.
_LEFT, _LATE = caller_left(), too_late()
_EVENTS = {
    "cache-control": "no-cache",
    # nginx and its like would gather events otherwise.
    "x-accel-buffering": "no",
}


class StreamAnswer(StreamingResponse):
    """Sends `events` until they end, the caller leaves or `deadline`; `close` is called then, with
    the code `deadline` where it was that.

    To be run also for a caller that has gone: nothing else closes it. `fault` gives the error of an
    error event, `tell` that event where the worker leaves before the end; `ended` is told once what
    it ended with, None where it is whole.
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
        self._close(*([_LATE.kind.code] if self._ended_by is _LATE else []))
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
        left_s = max(0.0, self._deadline - time.monotonic()) + _LAST_WORDS_S
        try:
            await asyncio.wait(
                {sending, leaving}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if sending.done():
                # An OSError is a caller that left.
                with suppress(OSError):
                    self._ended_by = _LEFT
                    sending.result()
                    self._ended_by = None
            else:
                self._ended_by = _why_left() if leaving.done() else _LATE
        finally:
            # Before the tasks' ends close the sequences as those of a caller that left.
            if self._ended_by is _LATE:
                self.close()
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self.close()
        await self._tell_who_stays(send)

    async def _tell_who_stays(self, send: Any) -> None:
        """Where it was the worker that left: its stream is not to look whole."""
        error = self._ended_by
        if error is None or error.kind.status < FIRST_SERVER_FAULT or error is _LATE:
            return
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LEAVING_S):
                await send({"type": "http.response.body", "body": self._tell(error)})


def _why_left() -> ServingError:
    caller = current_caller.get()
    return _LEFT if caller is None or not caller.done() else why_nobody_waits(caller)


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
