"""How long callers keep their connections: after some minutes an answer asks them to connect anew.

What looks at packets alone, as a Kubernetes Service does, chooses a pod for a connection once.
Callers that keep theirs would stay on the pods that they first met, however many come after these.

Tested by tests/gateway/test_connections.py.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from transformer_serving.gateway.asgi import Scope

# Of HTTP's connections and of gRPC's, and what is added or taken by chance, so that those which
# were made together are not made anew together: as gRPC itself has it.
KEPT_SECONDS = 180.0
_SPREAD = 0.1
# Beyond it the one that was made first is forgotten, and counts anew where it still is: about 3 MB.
# Who connects anew for each request fills it, and is shared out already.
_MOST = 20_000
# Without a request for so long a connection has gone, or its answer is a long stream.
_GONE_S = 120.0
_NO_PORT = ("", "0", 0, None)


class Connections:
    """Of one worker, each known by its caller's address and port. No answer is cut: the first one
    after a connection's time is its last.
    """

    def __init__(
        self, kept_seconds: float = KEPT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept_seconds = kept_seconds
        self._clock = clock
        # When each one's time is over, by when it was first seen.
        self._ends: OrderedDict[int, float] = OrderedDict()

    def is_old(self, scope: Scope) -> bool:
        """Whether the request's connection has had its time. Of any thread, changes nothing."""
        caller = _caller(scope)
        end = None if caller is None else self._ends.get(caller)
        return end is not None and self._clock() >= end

    def ends_with(self, scope: Scope) -> bool:
        """Whether the request's answer is to be its connection's last; counts the connection."""
        caller = _caller(scope)
        if caller is None:
            return False
        now = self._clock()
        end = self._ends.get(caller)
        if end is None:
            self._forget(now)
            self._ends[caller] = now + self._kept_seconds * (1 + _SPREAD * _chance(caller))
            return False
        if now < end:
            return False
        # Its port may soon be another connection's.
        del self._ends[caller]
        return True

    def _forget(self, now: float) -> None:
        while self._ends:
            first = next(iter(self._ends))
            if len(self._ends) < _MOST and now < self._ends[first] + _GONE_S:
                return
            del self._ends[first]


def _caller(scope: Scope) -> int | None:
    """None where it has no port: a socket of the machine's own, or an address that a proxy told."""
    client = scope.get("client")
    return None if client is None or client[1] in _NO_PORT else hash((client[0], client[1]))


def _chance(caller: int) -> float:
    """From -1 to 1, of each caller another one."""
    return caller % 2001 / 1000 - 1
