"""What a process holds of request bodies, all connections together: a request's share is counted as
it grows and given back whole when the request ends, however it ends.

Tested by tests/gateway/test_body_memory.py.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class BodyMemory:
    """At most `limit` bytes; `held` are those of now. To be used in one thread.

    `refusal` makes the error, of that limit, for a body that would be too much.
    """

    def __init__(self, limit: int, refusal: Callable[[int], Exception]) -> None:
        self.limit = limit
        self.refusal = refusal
        self.held = 0

    def share(self) -> Share:
        return Share(self)


class Share:
    """One request's part; as a context manager it is given back at the end."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.held = 0

    def take(self, size: int, *, is_here: bool = False) -> None:
        """Count more bytes. Raises the memory's refusal where they are too many together.

        A body that came whole at once `is_here` already: refusing it would free nothing.
        """
        if not is_here and self._memory.held + size > self._memory.limit:
            raise self._memory.refusal(self._memory.limit)
        self._count(size)

    def give_back(self, size: int) -> None:
        self._count(-size)

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._count(-self.held)

    def _count(self, size: int) -> None:
        self.held += size
        self._memory.held += size
