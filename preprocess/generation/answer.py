"""A stream of server-sent events as a Response, which the host passes through.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, KeysView, Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import StreamingResponse

from transformer_serving.contract.worker.durations import OK

# For what is already on its way when the deadline comes.
_LAST_WORDS_S = 5.0
# Codes of errors.
_LEFT, _DEADLINE = "left", "deadline"
_EVENTS = {
    "cache-control": "no-cache",
    # nginx and its like would gather events otherwise.
    "x-accel-buffering": "no",
}


class StreamAnswer(StreamingResponse):
    """Sends `events` until they end, the caller leaves or `deadline`; `close` is called then, with
    the code `deadline` where it was that.

    It reads like a dict of `scalars`, as clearml-serving's metric logging does. A gateway that
    finds its caller gone calls `close` itself. `fault` gives the code of an error event; `ended` is
    told the code of the whole, once.
    """

    # The gateway watches the connection for as long as the answer takes.
    is_stream = True

    def __init__(
        self, events: AsyncIterator[bytes], headers: dict[str, str], scalars: Mapping[str, Any],
        close: Callable[..., None], deadline: float, fault: Callable[[], str | None] = lambda: None,
        ended: Callable[[str], None] = lambda code: None,
    ) -> None:  # fmt: skip
        super().__init__(events, 200, {**headers, **_EVENTS}, "text/event-stream")
        self._scalars = scalars
        self._deadline = deadline
        self._fault = fault
        self._ended_by = OK
        self._close = close
        self._ended: Callable[[str], None] | None = ended

    @property
    def code(self) -> str:
        """What it was in the end: its status left before the first event."""
        return self._fault() or self._ended_by

    def close(self) -> None:
        self._close(*([_DEADLINE] if self._ended_by == _DEADLINE else []))
        told, self._ended = self._ended, None
        if told is not None:
            told(self.code)

    def keys(self) -> KeysView[str]:
        return self._scalars.keys()

    def __getitem__(self, name: str) -> Any:
        return self._scalars[name]

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
                    self._ended_by = OK
            else:
                self._ended_by = _LEFT if leaving.done() else _DEADLINE
        finally:
            # Before the tasks' ends close the sequences as those of a caller that left.
            if self._ended_by == _DEADLINE:
                self.close()
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self.close()


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
