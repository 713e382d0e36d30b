"""One Triton of several, by whichever protocol.

Tested by tests/preprocess/test_triton_client.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from preprocess.tensors import Array, Tensor
from preprocess.triton.replies import Replies
from preprocess.triton.streamed_request import StreamedRequest
from transformer_serving.contract.endpoint import OutputTensor

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
        self, model: str, version: int, request: StreamedRequest, left_s: float
    ) -> Replies: ...


@dataclass(eq=False)
class Member:
    """One Triton of several. `aside` says for what it is not asked, and when to look again."""

    server: Server
    in_flight: int = 0
    turn: int = 0
    aside: dict[Model | None, float] = field(default_factory=dict)
    # Whether somebody looks whether it is back.
    is_watched: bool = False

    def is_aside(self, model: Model | None = None) -> bool:
        return None in self.aside or model in self.aside
