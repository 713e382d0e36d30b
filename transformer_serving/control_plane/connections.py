"""Connections that ask for nothing: uvicorn alone keeps a part of a head for ever, as many as the
process may have files, and then hears nobody.

Tested by tests/control_plane/test_connections.py.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# For a head to come whole, from the connection's begin or the head's first byte, and for the rest
# of a request that is answered.
HEAD_SECONDS = 10.0
# Far more than there are clients of one machine.
_MOST_WAITING = 512


class Connection(HttpToolsProtocol):
    """One whose whole head has not come, or whose last answer is over, waits; of those that do, a
    further one ends the one that has waited longest.

    Of the one server of a process.
    """

    most_waiting: ClassVar[int] = _MOST_WAITING
    # The longest first.
    _waiting: ClassVar[dict[Connection, None]] = {}
    _end: asyncio.TimerHandle | None = None
    # A request has begun, and not all of it has come.
    _is_within: bool = False

    @classmethod
    def bounded(cls, files: int) -> type[Connection]:
        """For a process that may open so many: half of them are left to what is asked for."""
        cls.most_waiting = min(_MOST_WAITING, files // 2)
        return cls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        self._begin_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # A head, the body of an answered request, which nobody reads, or what begins no request:
        # any byte ends the time that uvicorn gives a kept one.
        if self in self._waiting and (self._is_within or self.timeout_keep_alive_task is None):
            self._begin_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_within = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._is_within = False
        if self in self._waiting:
            # The rest of an answered request has come: it is kept as others are.
            self._cancel_end()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_headers_complete(self) -> None:
        self._leave()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Of several requests at once the next one is being answered.
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait()
            if self._is_within:
                self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def abort(self) -> None:
        """What its caller does not read would keep one that is only closed."""
        self._leave()
        self.transport.abort()

    def _wait(self) -> None:
        self._waiting[self] = None
        if len(self._waiting) > self.most_waiting:
            next(iter(self._waiting)).abort()

    def _begin_head(self) -> None:
        if self._end is None:
            self._end = self.loop.call_later(HEAD_SECONDS, self.abort)

    def _leave(self) -> None:
        self._waiting.pop(self, None)
        self._cancel_end()

    def _cancel_end(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
