"""Messages on their way in: only so many at a time, each for a bounded time.

gRPC holds what has come of a message before anybody sees it, and refuses none for all of them.

Tested by tests/gateway/test_grpc_memory.py.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs wanted

from transformer_serving.contract.errors import ServingError
from transformer_serving.gateway.body.memory import refusal
from transformer_serving.gateway.settings import BODY_STALL_SECONDS, GatewaySettings


class Reading:
    """As many messages at a time as fit into the total of bodies, were each as large as may be."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._total = settings.body_memory_bytes
        self._seconds = settings.body_stall_seconds
        self._turns = asyncio.Semaphore(max(1, self._total // settings.max_body_bytes))
        self._running: set[asyncio.Task[Any]] = set()

    async def message(self, context: grpc.aio.ServicerContext) -> Any:
        """The call's message. Raises ServingError (400, 503) where it does not come in time, or is
        none.
        """
        try:
            async with asyncio.timeout(self._seconds):
                await self._turns.acquire()
        except TimeoutError:
            raise refusal(self._total) from None
        # Not cancelled when it is late: gRPC goes on writing into what it is given until the call
        # ends, which ends this too.
        task = asyncio.get_running_loop().create_task(context.read())
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait((task,), timeout=self._seconds)
        if not task.done():
            raise ServingError(
                "malformed_body",
                "the message did not come in time; "
                f"{BODY_STALL_SECONDS.name} sets how long is waited",
                limit=f"{self._seconds:g} s",
            )
        try:
            message = task.result()
        except DecodeError:
            raise ServingError(
                "malformed_body", "the message is no protobuf of this call's request"
            ) from None
        if message is grpc.aio.EOF:
            raise ServingError("malformed_body", "the call ended without a message")
        return message

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        self._turns.release()
        if not task.cancelled():
            # Looked at, or its error would be told as one that nobody saw.
            task.exception()
