"""A crowd's refusals, given again in the thread that brings requests, without the event loop.

Where more comes than an engine can do, the refusals take the processor from the answers: each wakes
the loop, makes a task, and stands in line before what the engine has just computed. So a refusal
says how long it holds and for whom (`Reach` in preprocess/glance.py), and until then those get the
same one from here. After that one of them at a time is let in, to ask again. A request with a
binary part, a compressed body or a trace goes the whole way.

Tested by tests/gateway/test_crowd.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.panics import ENDS
from transformer_serving.contract.worker.deferred import Deferred
from transformer_serving.contract.worker.durations import Durations, status_of
from transformer_serving.contract.worker.trace_context import HEADER as TRACE
from transformer_serving.gateway.asgi import Message, Scope
from transformer_serving.gateway.body.incoming import header_values
from transformer_serving.gateway.exchange import TIMING, answer_headers
from transformer_serving.gateway.keys import Keys, check_may_ask
from transformer_serving.gateway.request_id import request_id
from transformer_serving.gateway.routes import Call, call_of
from transformer_serving.gateway.settings import GatewaySettings

_WHOLE_WAY = (b"content-encoding", b"inference-header-content-length", TRACE.encode())


@dataclass(slots=True)
class Given:
    """A refusal that holds until `until` on time.monotonic's clock, at most until `last`.

    `seconds` has how long each took that was given since they were last counted.
    """

    until: float
    last: float
    reach: Any
    name: str
    code: str
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    seconds: list[float]

    def lets_in(self, now: float) -> bool:
        """Whether who comes `now` is to ask again. While the loop has one who asks, the others are
        not let in as well: it is late just when many come, and each of them would make it later.
        """
        if now <= self.until:
            return False
        self.until = now + self.reach.seconds
        return True


class Crowd:
    """Of one worker. `refusal` is called in Granian's thread, everything else in the loop."""

    def __init__(
        self, settings: GatewaySettings, keys: Keys | None, durations: Durations,
        asked: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`asked` counts a request by its key's name."""
        self._longest = settings.max_body_bytes
        # A line for every request is written on the whole way.
        self._is_off = settings.log_requests
        self._keys = keys
        self._asked = asked
        self._durations = durations
        self._given: dict[Call, Given] = {}
        self._late: list[Given] = []
        self._soon = Deferred(self._tell_on).soon

    def gave(self, call: Call, refusal: Response, name: str) -> None:
        """`refusal` was what the endpoint `name` answered; others get it too, where it says so."""
        reach = getattr(refusal, "reach", None)
        if reach is None or self._is_off:
            return
        before = self._given.get(call)
        headers = [row for row in refusal.raw_headers if row[0] != TIMING]
        now = time.monotonic()
        longest = max(reach.seconds, reach.longest_s)
        self._given[call] = Given(
            now + reach.seconds, now + longest, reach, name, getattr(refusal, "code", ""),
            refusal.status_code, headers, bytes(refusal.body), [],
        )  # fmt: skip
        if before is not None:
            self._count(before)
        self._soon()

    def let_in(self, call: Call, raw: bytes) -> None:
        """A request for the same was not refused: whoever comes now may not be either."""
        if not self._given:
            return
        given = self._given.get(call)
        if given is not None and _holds(given.reach, raw):
            del self._given[call]
            self._count(given)

    def refusal(self, scope: Scope, raw: bytes) -> Iterable[Message] | None:
        """The answer of a request that needs no look into its whole body, None of all others."""
        if not self._given:
            return None
        arrived = time.monotonic()
        call = call_of(scope)
        given = None if call is None else self._given.get(call)
        if call is None or given is None or arrived > given.last or len(raw) > self._longest:
            return None
        headers = header_values(scope["headers"])
        if any(name in headers for name in _WHOLE_WAY) or not _holds(given.reach, raw):
            return None
        name = _key_name(self._keys, headers, call)
        if name is None or given.lets_in(arrived):
            return None
        if name:
            # Whoever is let in counts on the whole way.
            self._asked(name)
        seconds = time.monotonic() - arrived
        given.seconds.append(seconds)
        if self._given.get(call) is not given:
            # The loop let go of it meanwhile, and may have counted it already.
            self._late.append(given)
        headers_of_it = [*given.headers, *answer_headers(request_id(headers), seconds)]
        return (
            {"type": "http.response.start", "status": given.status, "headers": headers_of_it},
            {"type": "http.response.body", "body": given.body},
        )

    def tell(self) -> None:
        """Count what was given; let go of what does not hold any more."""
        now = time.monotonic()
        for call, given in tuple(self._given.items()):
            if given.last < now:
                del self._given[call]
            self._count(given)
        while self._late:
            self._count(self._late.pop())

    def _tell_on(self) -> None:
        """And again for as long as any holds: where it is given nobody can ask for that."""
        self.tell()
        # Without a loop there is no later.
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop()
            if self._given:
                self._soon()

    def _count(self, given: Given) -> None:
        times = 0
        status = status_of(given.code, given.status)
        while given.seconds:
            self._durations.took(given.name, given.code, status, given.seconds.pop())
            times += 1
        if times:
            given.reach.tell(times)


def _key_name(keys: Keys | None, headers: dict[bytes, bytes], call: Call) -> str | None:
    """Empty without keys; None for whoever has no right to ask, who is told so, and counted, on the
    whole way."""
    if keys is None:
        return ""
    try:
        key = keys.key_of(headers)
        check_may_ask(key, "", call.target)
    except ServingError:
        return None
    return key.name


def _holds(reach: Any, raw: bytes) -> bool:
    """It is the endpoint's own code, of whatever version."""
    try:
        return reach.holds_for(raw) is True
    except ENDS:
        raise
    except BaseException:
        return False
