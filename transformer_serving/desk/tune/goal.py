"""What is to be large: texts a second, of all clients or within a time that p99 must keep.

Tested by tests/tune/test_goal.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from transformer_serving.desk.bench import contact, load
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.bench.figures import percentile
from transformer_serving.desk.failure import Failure

THROUGHPUT = "throughput"
_P99 = re.compile(r"p99\s*<=?\s*([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*(ms|s)")
MOST_CLIENTS = 512
_FIRST_CLIENTS = 8
# Of fewer requests p99 says whether a seldom long one was among them. Where a load has fewer,
# others are joined to it, but that the slowest endpoint takes no time without end.
_P99_REQUESTS = 200
_MOST_LOADS = 3
_OPEN_S = 15.0
# Rounds begin by this share of all requests later than the one before: however many there are,
# their begins lie far from each other.
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Goal:
    """`p99_ms` is the longest that 99 of 100 requests may take; None: as many texts as can be."""

    p99_ms: float | None = None

    def __str__(self) -> str:
        return THROUGHPUT if self.p99_ms is None else f"p99<={self.p99_ms:g}ms"


def read_goal(text: str) -> Goal:
    """Of `throughput`, `p99<=50ms` or `p99<=0.5s`. Raises Failure (exit code 2)."""
    if text.strip() == THROUGHPUT:
        return Goal()
    found = _P99.fullmatch(text.strip())
    if found is None or float(found[1]) == 0:
        raise Failure("--goal must be throughput, or such as p99<=50ms", exit_code=2)
    return Goal(float(found[1]) * (1000 if found[2] == "s" else 1))


@dataclass(frozen=True)
class Point:
    """A closed loop of so many clients: texts a second, and p99 in milliseconds.

    What is not answered with 200 took without end.
    """

    clients: int
    texts: float
    p99_ms: float


def point(clients: int, run: load.Run) -> Point:
    times = sorted(
        (one.done - one.due) * 1e3 if one.status == 200 else math.inf for one in run.exchanges
    )
    texts = sum(one.texts for one in run.exchanges if one.status == 200)
    p99 = percentile(times, 99.0) if times else math.inf
    return Point(clients, texts / (run.elapsed_s or math.inf), p99)


def next_clients(found: Sequence[Point], p99_ms: float) -> int | None:
    """Twice or half as many as last, until one count keeps the time and its double does not; None
    when that is known, or there is no further count."""
    last = found[-1]
    within = last.p99_ms <= p99_ms
    following = last.clients * 2 if within else last.clients // 2
    known = {one.clients for one in found}
    return following if 1 <= following <= MOST_CLIENTS and following not in known else None


def texts_within(found: Sequence[Point], p99_ms: float) -> float:
    """Texts a second at which p99 is `p99_ms`: between the most clients that keep it and the next
    more, in proportion to p99.

    Where not even the fewest clients keep it, theirs times how far they are from it, so that of two
    settings too slow the faster one is better.
    """
    ordered = sorted(found, key=lambda one: one.clients)
    kept = [one for one in ordered if one.p99_ms <= p99_ms]
    if not kept:
        fewest = ordered[0]
        return fewest.texts * p99_ms / fewest.p99_ms
    best = kept[-1]
    above = next((one for one in ordered if one.clients > best.clients), None)
    if above is None:
        return best.texts
    share = (p99_ms - best.p99_ms) / (above.p99_ms - best.p99_ms)
    return max(best.texts, best.texts + share * (above.texts - best.texts))


@dataclass(frozen=True)
class OpenLoop:
    """Callers who do not wait for each other: so many texts a second at random moments, and p99 in
    milliseconds, without end where not all were answered with 200."""

    texts: float
    p99_ms: float


@dataclass
class Meter:
    """Measures an address by the goal; larger is better.

    `clients` is of throughput alone, `seconds` of each load. Raises Failure when nothing answers.
    A round, by its number, begins at a place of its own among the requests, the same for everybody
    that it measures: what a load has no time for is not the same in every round.
    """

    goal: Goal
    payloads: Sequence[load.Payload]
    clients: int
    seconds: float
    # The most of one core that this process used in any load.
    generator_cpu: float = 0.0
    # Where an address was last found to cross p99: the next search begins there.
    _begin: dict[tuple[int, str], int] = field(default_factory=dict)
    # Places in the order in which the payloads leave.
    _measured: set[int] = field(default_factory=set)

    @property
    def measured(self) -> int:
        """How many of the payloads were in a load that was measured."""
        return len(self._measured)

    def measure(self, address: Address, number: int) -> float:
        place = int(len(self.payloads) * (number * _GOLDEN % 1))
        if self.goal.p99_ms is None:
            return self._point(address, self.clients, place).texts
        where = (address.port, address.path)
        found = [self._point(address, self._begin.get(where, _FIRST_CLIENTS), place)]
        while (clients := next_clients(found, self.goal.p99_ms)) is not None:
            found.append(self._point(address, clients, place))
        kept = [one.clients for one in found if one.p99_ms <= self.goal.p99_ms]
        self._begin[where] = max(kept, default=1)
        return texts_within(found, self.goal.p99_ms)

    def warm_up(self, address: Address) -> None:
        """Each request once, or as many as twice a load's time is enough for, by as many clients as
        there will be."""
        requests = max(len(self.payloads), 4 * self.clients)
        contact.run(address, self.payloads, load.Closed(self.clients, 2 * self.seconds, requests))

    def open_loop(self, address: Address, texts: float) -> OpenLoop:
        """`texts` a second, for as many requests as a p99 takes where the time is enough."""
        rate = texts * len(self.payloads) / sum(one.texts for one in self.payloads)
        seconds = max(self.seconds, min(_P99_REQUESTS / rate, _OPEN_S))
        run = contact.run(address, self.payloads, load.Open(rate, seconds))
        return OpenLoop(texts, point(0, run).p99_ms)

    def _point(self, address: Address, clients: int, place: int) -> Point:
        loads = 1 if self.goal.p99_ms is None else _MOST_LOADS
        exchanges: list[load.Exchange] = []
        elapsed_s = cpu_s = 0.0
        for _ in range(loads):
            kind = load.Closed(clients, self.seconds, begin=place + len(exchanges))
            run = contact.run(address, self.payloads, kind)
            exchanges += run.exchanges
            self.generator_cpu = max(self.generator_cpu, run.cpu_s / (run.elapsed_s or math.inf))
            elapsed_s, cpu_s = elapsed_s + run.elapsed_s, cpu_s + run.cpu_s
            if len(exchanges) >= _P99_REQUESTS:
                break
        count = len(self.payloads)
        self._measured |= {(place + at) % count for at in range(min(len(exchanges), count))}
        return point(clients, load.Run(tuple(exchanges), elapsed_s, cpu_s))
