"""What becomes of the requests for endpoints: how many are in flight, and how long each took.

Names in figures are of endpoints that exist, never a caller's own words.

Tested by tests/gateway/test_traffic.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Collection
from types import TracebackType

import prometheus_client as prometheus

from transformer_serving.contract.errors import UNKNOWN_ENDPOINT
from transformer_serving.contract.worker.durations import Durations, code_of, status_of
from transformer_serving.gateway.asgi import Message, Send
from transformer_serving.gateway.figures.exemplars import Exemplars
from transformer_serving.gateway.figures.metrics import in_flight
from transformer_serving.gateway.request_trace import RequestTrace
from transformer_serving.gateway.requested_endpoint import RequestedEndpoint
from transformer_serving.gateway.short_way import ShortWay

# Of requests for no endpoint that there is.
NOBODY = ""


class Traffic:
    """Of one worker, from its loop."""

    def __init__(self, short_way: ShortWay) -> None:
        self._short_way = short_way
        self._running: Counter[str] = Counter()
        self._shown: dict[str, int] = {}
        # Whether the worker leaves without waiting for what runs.
        self.ends = False
        self.durations = Durations(prometheus, self._tell_running)
        self.exemplars = Exemplars()

    def visit(self, target: RequestedEndpoint | None, arrived: float) -> Visit:
        """To be entered for one request; `arrived` on time.monotonic's clock."""
        return Visit(self, self.name_of(target), arrived)

    def name_of(self, target: RequestedEndpoint | None) -> str:
        return NOBODY if target is None else self._short_way.name_of(target) or NOBODY

    def entered(self, endpoint: str) -> None:
        self._running[endpoint] += 1
        self.durations.soon()

    def left(self, endpoint: str) -> None:
        """What it was is counted after this, or whom else it is in flight for: both tell soon."""
        self._running[endpoint] -= 1

    def forget(self, endpoints: Collection[str]) -> None:
        """Of these, which are gone for good, nothing is told any more unless somebody asks them."""
        self.durations.forget(endpoints)
        self.exemplars.forget(endpoints)
        for name in endpoints:
            self._shown.pop(name, None)
            if not self._running[name]:
                del self._running[name]

    def _tell_running(self) -> None:
        for endpoint, number in self._running.items():
            if self._shown.get(endpoint) != number:
                # A cleaner of temporary files may have taken the figures' folder.
                with contextlib.suppress(OSError):
                    in_flight().labels(endpoint).set(number)
                    self._shown[endpoint] = number


class Visit:
    """One request: `endpoint` is whose it is, `code` and `status` what it was answered.

    `begun` says whether any of it has left; `trace` None: it is not traced.
    """

    __slots__ = ("_arrived", "_traffic", "begun", "code", "endpoint", "status", "trace")

    def __init__(self, traffic: Traffic, endpoint: str, arrived: float) -> None:
        self._traffic = traffic
        self._arrived = arrived
        self.endpoint = endpoint
        self.code = ""
        self.status = 0
        self.begun = False
        self.trace: RequestTrace | None = None

    def asks(self, target: RequestedEndpoint) -> None:
        """Whom its body named, or who came to be while it waited."""
        if self.endpoint == NOBODY and (named := self._traffic.name_of(target)):
            self._traffic.left(self.endpoint)
            self.endpoint = named
            self._traffic.entered(named)

    @property
    def told_of(self) -> str:
        """Whose answer it is by now: what was not found is nobody's."""
        return NOBODY if self.code == UNKNOWN_ENDPOINT else self.endpoint

    def answered(self, named: object, status: int) -> None:
        """`named` is the code that the answer says, None where it says none."""
        self.code = code_of(named, status)
        self.status = status

    def watching(self, send: Send) -> Send:
        """For an app that says nothing of its answer but by sending it."""

        async def forward(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.begun = True
                self.answered(None, message["status"])
            await send(message)

        return forward

    def __enter__(self) -> Visit:
        self._traffic.entered(self.endpoint)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        traffic = self._traffic
        traffic.left(self.endpoint)
        cancelled = isinstance(error, asyncio.CancelledError)
        if cancelled and traffic.ends and (self.begun or not self.code):
            # Not of a refusal, which was counted and sent but for the end of a body still coming.
            self.code = "unavailable"
        elif not self.code:
            # No answer at all: its server gave it up, or a fault of ours ended it.
            self.code = "left" if cancelled else "internal"
        status = status_of(self.code, self.status)
        seconds = time.monotonic() - self._arrived
        traced = self.trace
        if traced is None:
            traffic.durations.took(self.told_of, self.code, status, seconds)
            return
        traced.ended(self.told_of, self.code, status)
        traffic.durations.took(self.told_of, self.code, status, seconds, traced.trace_id)
        traffic.exemplars.note(self.told_of, self.code, status, seconds, traced.trace_id)
