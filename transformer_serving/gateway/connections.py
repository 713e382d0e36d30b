"""How long callers keep their connections: after some minutes an answer asks them to connect anew.

What looks at packets alone, as a Kubernetes Service does, chooses a pod for a connection once.
Callers that keep theirs would stay on the pods that they first met, however many come after these.

Tested by tests/gateway/test_connections.py.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from transformer_serving.gateway.asgi import Scope, hears_close

# Of HTTP's connections and of gRPC's, and what is added or taken by chance, so that those which
# were made together are not made anew together: as gRPC itself has it.
KEPT_SECONDS = 180.0
_SPREAD = 0.1
# For a head to come whole, and for a kept connection to bring the next one. Longer than the 60 s
# after which balancers commonly let go: the side that sends requests should be the one that closes.
HEAD_SECONDS = 75.0
# Beyond it who asked longest ago is forgotten, and counts anew where it still is: about 4 MB. Who
# connects anew for each request fills it, and is shared out already.
_MOST = 20_000
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
        # When each one's time is over and when it last asked, by the latter.
        self._kept: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def is_old(self, scope: Scope) -> bool:
        """Whether the request's connection has had its time. Of any thread, changes nothing."""
        caller = _caller(scope)
        kept = None if caller is None else self._kept.get(caller)
        if kept is None:
            return False
        end, asked = kept
        return end <= self._clock() < asked + HEAD_SECONDS

    def ends_with(self, scope: Scope) -> bool:
        """Whether the request's answer is to be its connection's last; counts the connection."""
        caller = _caller(scope)
        if caller is None:
            return False
        now = self._clock()
        self._forget(now)
        kept = self._kept.get(caller)
        if kept is None:
            end = now + self._kept_seconds * (1 + _SPREAD * _chance(caller))
        elif now < kept[0]:
            end = kept[0]
        else:
            # Its port may soon be another connection's.
            del self._kept[caller]
            return True
        self._kept[caller] = end, now
        self._kept.move_to_end(caller)
        return False

    def _forget(self, now: float) -> None:
        """Those that have gone. One that asks after all, as after a long stream, counts anew."""
        while self._kept:
            first = next(iter(self._kept))
            if len(self._kept) <= _MOST and now < self._kept[first][1] + HEAD_SECONDS:
                return
            del self._kept[first]


def _caller(scope: Scope) -> int | None:
    """None where it has no port: a socket of the machine's own, or an address that a proxy told;
    and in HTTP/1.0.
    """
    client = scope.get("client")
    if client is None or client[1] in _NO_PORT or not hears_close(scope):
        return None
    return hash((client[0], client[1]))


def _chance(caller: int) -> float:
    """From -1 to 1, of each caller another one."""
    return caller % 2001 / 1000 - 1
