"""The answers to one request, as a decoupled model sends them.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping

from preprocess.tensors import RawOutput

# An answer's tensors by name.
Outputs = Mapping[str, RawOutput]
# Told of an answer when it came, on time.monotonic's clock, whether anybody reads it or not.
Arrived = Callable[[float], object]


class Replies:
    """One stream. `first` is there after `begin`; `leave` says that nobody waits any more.

    To be closed, which lets the engine stop within its next step. `failed` is whether it was cut
    by a fault, and not by its end or its caller. `came` gives when the one that was read last had
    come, on time.monotonic's clock.
    """

    def __init__(
        self,
        answers: AsyncIterator[Outputs],
        leave: Callable[[], object],
        came: Callable[[], float] = time.monotonic,
    ) -> None:
        self._answers = answers
        self._leave = leave
        self.came = came
        self._ended: list[Callable[[], None]] = []
        self.first: Outputs | None = None
        self.failed = False

    async def begin(self) -> None:
        """Wait for the first answer. Raises ServingError."""
        self.first = await self.next()

    async def next(self) -> Outputs | None:
        """None after the last. Raises ServingError."""
        return await anext(self._answers, None)

    def when_closed(self, ended: Callable[[], None]) -> None:
        """`ended` is called once."""
        self._ended.append(ended)

    def close(self, *, failed: bool = False) -> None:
        self.failed = self.failed or failed
        self._leave()
        while self._ended:
            self._ended.pop()()
