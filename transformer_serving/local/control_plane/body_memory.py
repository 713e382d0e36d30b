"""What the bodies of all API calls hold together, counted as they come."""

from __future__ import annotations

from types import TracebackType

from .errors import ApiError, Failure


class BodyMemory:
    """At most `limit` bytes; `held` are those of now. To be used in one thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def share(self) -> Share:
        return Share(self)


class Share:
    """One call's part; as a context manager it is given back at the end, however that comes."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self._held = 0

    def take(self, size: int) -> None:
        """Count more bytes; refuses what would be too many together."""
        if self._memory.held + size > self._memory.limit:
            # Not 503: the SDK would try again without end.
            raise ApiError(
                Failure.TOO_LARGE,
                f"at most {self._memory.limit} bytes of all calls together; try again later",
            )
        self._memory.held += size
        self._held += size

    def __enter__(self) -> Share:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._memory.held -= self._held
        self._held = 0
