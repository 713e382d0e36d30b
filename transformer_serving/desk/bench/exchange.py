"""What a load is told, and what it gives back: payloads, the two kinds of loads, exchanges.

Tested by tests/bench/test_load.py and tests/bench/test_time_limit.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Payload:
    """One body to send; `label` names its class in the figures, `texts` is how many it holds."""

    label: str
    body: bytes
    texts: int = 1
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request: when it was due, sent and answered (seconds on one clock), and the status."""

    label: str
    texts: int
    due: float
    sent: float
    done: float
    status: int


@dataclass(slots=True, eq=False)
class Unsent:
    """A request that is due and waits for a connection."""

    due: float
    payload: Payload
    request: bytes


@dataclass(frozen=True)
class Run:
    """All exchanges of one load; `cpu_s` is what this process itself spent meanwhile.

    `elapsed_s` is without the wait at the end for what was never answered.
    """

    exchanges: tuple[Exchange, ...]
    elapsed_s: float
    cpu_s: float


@dataclass(frozen=True)
class Closed:
    """N clients, each sending its next request when the last one is answered.

    Ends after `seconds`, or after `requests` where that is given. One that has no answer after
    `leave_s` closes its connection and goes on with another. `begin` is the first one's place in
    the order in which payloads leave.
    """

    clients: int
    seconds: float
    requests: int | None = None
    leave_s: float | None = None
    begin: int = 0


@dataclass(frozen=True)
class Open:
    """Requests at random moments (a Poisson process), `rate` a second on average.

    At most `connections` are answered at a time, fewer where the process may not open as many
    files; further ones wait, and their wait counts. Who has no answer `leave_s` after it was sent
    closes its connection.
    """

    rate: float
    seconds: float
    connections: int = 512
    leave_s: float | None = None
