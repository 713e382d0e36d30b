"""One stream of a Triton: a request, its answers, and a farewell where nobody waits for them.

One whose engine knows a farewell is read to its end and never cancelled: Triton 2.51 may lose a
request whose stream is, and with it the model's process, or end itself
(docs/decisions/language-models.md, "A caller that leaves"). What is read is bounded by the tokens
that were asked for. One whose engine knows none is cancelled, unless its last answer has come.

The farewell has a stream of its own. As a second request on the first one it may be refused, when
its model is being unloaded, while the first one's answers are written: that ends Triton 2.51.

Tested by tests/preprocess/generation/test_text_generation.py and tests/preprocess/test_stream.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from typing import Any

import grpc

from preprocess.triton.replies import Arrived
from transformer_serving.contract.worker.open_streams import open_streams

# An engine that has not ended after its farewell for so long does not answer any more.
_END_S = 10.0


class Stream:
    """Of one event loop; `open_call` makes the RPC of an iterator of messages and a time limit.

    `arrived` is called with the time of each answer that comes, be it read or not.
    """

    def __init__(
        self, open_call: Callable[..., Any], request: Any, farewell: Any, limit_s: float,
        arrived: Arrived,
    ) -> None:  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._open_call = open_call
        self._request = request
        self._farewell = farewell
        self._arrived = arrived
        self._came: asyncio.Queue[tuple[float, Any]] = asyncio.Queue()
        # When the message that was read last had come; who reads may be slow.
        self.came = 0.0
        self._over = asyncio.Event()
        self._ended = False
        self._left = False
        self._too_long: asyncio.TimerHandle | None = None
        # The limit is the last resort: who waits gives up before it.
        self._call = open_call(self._messages(), timeout=limit_s + _END_S)
        # A reader of its own: gRPC cancels the stream of a read that is cancelled.
        self._reading = self._kept(self._read())

    async def answers(self) -> AsyncIterator[Any]:
        """The messages as they came. Raises grpc.aio.AioRpcError."""
        while True:
            self.came, message = await self._came.get()
            if message is None:
                return
            if isinstance(message, grpc.aio.AioRpcError):
                raise message
            yield message

    def leave(self) -> None:
        """Nobody waits for the answers any more; from whatever thread."""
        with suppress(RuntimeError):  # the loop is closed, and the stream with it
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if self._left:
            return
        self._left = True
        self._over.set()
        if self._farewell is not None and not self._ended:
            self._kept(self._part())
        elif not self._ended:
            self._call.cancel()
        if not self._reading.done():
            self._too_long = self._loop.call_later(_END_S, self._call.cancel)

    def _kept(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that is waited for before the worker ends."""
        task = self._loop.create_task(work)
        kept = open_streams()
        kept.add(task)
        task.add_done_callback(kept.discard)
        return task

    async def _part(self) -> None:
        """What becomes of the farewell nobody needs to know: the stream ends by itself at last."""
        with suppress(grpc.aio.AioRpcError):
            async for _ in self._open_call(_alone(self._farewell), timeout=_END_S):
                pass

    async def _messages(self) -> AsyncIterator[Any]:
        yield self._request
        await self._over.wait()

    async def _read(self) -> None:
        end: Any = None
        try:
            async for message in self._call:
                self._take(message)
        except grpc.aio.AioRpcError as error:
            end = error
        except asyncio.CancelledError:
            # By the limit after a farewell, or as the worker ends.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
        finally:
            self._ended = True
            self._over.set()
            self._came.put_nowait((time.monotonic(), end))
            if self._too_long is not None:
                self._too_long.cancel()

    def _take(self, message: Any) -> None:
        if _is_last(message):
            self._ended = True
            self._over.set()
        if self._left:
            return
        now = time.monotonic()
        self._came.put_nowait((now, message))
        if not message.error_message:
            self._arrived(now)


def _is_last(message: Any) -> bool:
    if message.error_message:
        return True
    return bool(message.infer_response.parameters["triton_final_response"].bool_param)


async def _alone(message: Any) -> AsyncIterator[Any]:
    yield message
