"""What a worker holds of bodies, all connections together: a request's share is counted as it
grows and given back whole when the request ends, however it ends.
"""

from __future__ import annotations

from types import TracebackType

from contract.errors import ServingError
from gateway.settings import BODY_MEMORY_BYTES


class BodyMemory:
    """At most `limit` bytes; `held` are those of now. To be used in one thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def share(self) -> Share:
        return Share(self)


class Share:
    """One request's part; as a context manager it is given back at the end."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.held = 0

    def take(self, size: int, *, is_here: bool = False) -> None:
        """Count more bytes. Raises ServingError (503) where they are too many together.

        A body that came whole at once `is_here` already: refusing it would free nothing.
        """
        if not is_here and self._memory.held + size > self._memory.limit:
            raise ServingError(
                "overloaded",
                "the bodies of all requests together are too large at this moment; send it again, "
                f"or raise {BODY_MEMORY_BYTES.name}",
                limit=self._memory.limit,
            )
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
