"""One Triton of several, by whichever protocol.

Tested by tests/preprocess/test_triton_client.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from preprocess.tensors import Array, Tensor
from preprocess.triton.replies import Arrived, Replies
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.endpoint import OutputTensor
from transformer_serving.contract.errors import ServingError

PROBE_EVERY_S = 0.5
PROBE_LIMIT_S = 2.0
# A model's name and version.
Model = tuple[str, int]


class Server(Protocol):
    """One Triton, by whichever protocol."""

    def __init__(self, address: str) -> None: ...

    async def infer(
        self, model: str, version: int, inputs: Sequence[Tensor], outputs: Sequence[OutputTensor]
    ) -> list[Array]: ...

    async def is_ready(self, model: str, version: int) -> bool: ...

    async def is_live(self) -> bool: ...

    def close(self) -> None: ...


class StreamingServer(Server, Protocol):
    """One that answers a request several times, which only gRPC can."""

    async def open(
        self, model: str, version: int, request: StreamedRequest, left_s: float, arrived: Arrived
    ) -> Replies: ...


@dataclass(eq=False)
class Member:
    """One Triton of several. `aside` says for what it is not asked, and when to look again;
    `watched`, of what of that somebody will look whether it is back.
    """

    server: Server
    in_flight: int = 0
    turn: int = 0
    aside: dict[Model | None, float] = field(default_factory=dict)
    watched: set[Model | None] = field(default_factory=set)

    def is_aside(self, model: Model | None = None) -> bool:
        return None in self.aside or model in self.aside

    async def probe(self, what: Model | None) -> None:
        """Ask one that was set aside, itself or for a model, whether it is back."""
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                back = await (
                    self.server.is_live() if what is None else self.server.is_ready(*what)
                )
        except (TimeoutError, ServingError):
            back = False
        if back:
            self.aside.pop(what, None)
        else:
            self.aside[what] = time.monotonic() + PROBE_EVERY_S
