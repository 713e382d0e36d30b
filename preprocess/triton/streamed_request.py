"""What is asked on a stream; apart from the stream itself, which imports gRPC.

Tested by tests/preprocess/test_stream.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from preprocess.tensors import Tensor


@dataclass(frozen=True)
class StreamedRequest:
    """`farewell` are the inputs of a second request, by which the engine ends the one of `id`; None
    for an engine that knows none, and ends what is cancelled."""

    id: str
    inputs: Sequence[Tensor]
    farewell: Sequence[Tensor] | None
