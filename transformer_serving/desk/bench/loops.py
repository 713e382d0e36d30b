"""How requests of each load leave, answer by answer; load.py runs them.

Tested by tests/bench/test_load.py and tests/bench/test_time_limit.py.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import resource
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from transformer_serving.desk.bench.connection import NO_ANSWER, Address, Connection
from transformer_serving.desk.bench.exchange import Closed, Exchange, Open, Payload, Run, Unsent
from transformer_serving.desk.bench.timer import Timer, lasted, now

_SEED = 11
# After this long without an answer a request counts as not answered.
_PATIENCE_S = 30.0


def arrivals(rate: float, seconds: float) -> list[float]:
    """Moments in [0, seconds) of a Poisson process, the same ones at every call."""
    source = random.Random(_SEED)
    moments: list[float] = []
    moment = source.expovariate(rate)
    while moment < seconds:
        moments.append(moment)
        moment += source.expovariate(rate)
    return moments


def in_order(payloads: Sequence[Payload], begin: int = 0) -> list[Payload]:
    """The payloads in one random order, the same at every call, from its place `begin` on."""
    order = list(payloads)
    random.Random(_SEED).shuffle(order)
    at = begin % len(order) if order else 0
    return order[at:] + order[:at]


def _requests(
    address: Address, payloads: Sequence[Payload], begin: int = 0
) -> Iterator[tuple[Payload, bytes]]:
    """The payloads in order, again and again, with their requests ready to send."""
    return itertools.cycle(
        [
            (payload, address.request(payload.body, payload.content_type))
            for payload in in_order(payloads, begin)
        ]
    )


class _Load:
    """What both loops share: exchanges as they end, and connections that replace themselves."""

    def __init__(
        self, address: Address, payloads: Sequence[Payload], leave_s: float | None, begin: int = 0
    ) -> None:
        self._address = address
        self._leave_s = leave_s
        self._payloads = _requests(address, payloads, begin)
        self._exchanges: list[Exchange] = []
        self._connections: set[Connection] = set()
        self._connecting: set[Unsent] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._finished = asyncio.Event()
        self._is_over = False

    def _answered(self, connection: Connection) -> None:
        """Called after each exchange, with the connection on which it ended."""
        raise NotImplementedError

    def unsent(self) -> Iterator[Unsent]:
        """What would still be sent if there were time."""
        yield from self._connecting

    async def _measured(self, seconds: float, start: Callable[[], None]) -> Run:
        cpu, began = _cpu_s(), now()
        start()
        try:
            async with asyncio.timeout(seconds + _PATIENCE_S):
                await self._finished.wait()
        except TimeoutError:
            pass
        finally:
            answered = (one.done for one in self._exchanges if one.status != NO_ANSWER)
            elapsed, spent = lasted(began, seconds, answered), _cpu_s() - cpu
            self._end()
        return Run(tuple(self._exchanges), elapsed, spent)

    def _end(self) -> None:
        """Nothing is sent any more; what has no answer by now, sent or not, gets none."""
        self._is_over = True
        for connection in tuple(self._connections):
            connection.close()
        for task in self._tasks:
            task.cancel()
        ended = now()
        for one in self.unsent():
            self._exchanges.append(
                Exchange(one.payload.label, one.payload.texts, one.due, ended, ended, NO_ANSWER)
            )

    def _send(self, connection: Connection, due: float, payload: Payload, request: bytes) -> None:
        sent = now()

        def done(status: int) -> None:
            self._exchanges.append(Exchange(payload.label, payload.texts, due, sent, now(), status))
            # Not called from here: a server that refuses at once would make this recurse.
            asyncio.get_running_loop().call_soon(self._next, connection)

        if self._leave_s is None:
            connection.send(request, done)
            return
        leaving = asyncio.get_running_loop().call_later(self._leave_s, connection.close)

        def told(status: int) -> None:
            leaving.cancel()
            done(status)

        connection.send(request, told)

    def _next(self, connection: Connection) -> None:
        # With other loads beside this one, the event loop goes on after its end.
        if not self._is_over:
            self._answered(connection)

    async def _connect(self) -> Connection:
        connection = Connection()
        await connection.open(self._address)
        self._connections.add(connection)
        return connection

    def _open(self, unsent: Unsent) -> None:
        """Send it on a new connection; the time of that counts, which it asked for."""
        self._connecting.add(unsent)
        kept = asyncio.ensure_future(self._opened_for(unsent))
        self._tasks.add(kept)
        kept.add_done_callback(self._tasks.discard)

    async def _opened_for(self, unsent: Unsent) -> None:
        try:
            connection = await self._connect()
        except OSError:
            # It says NO_ANSWER to whoever sends on it.
            connection = Connection()
            connection.closed = True
        self._connecting.discard(unsent)
        self._send(connection, unsent.due, unsent.payload, unsent.request)


class ClosedLoop(_Load):
    def __init__(self, address: Address, payloads: Sequence[Payload], load: Closed) -> None:
        super().__init__(address, payloads, load.leave_s, load.begin)
        self._load = load
        self._left = load.requests if load.requests is not None else -1
        self._running = 0
        self._until = 0.0

    async def run(self) -> Run:
        try:
            connections = [await self._connect() for _ in range(self._load.clients)]
        except OSError:
            self._end()
            raise

        def start() -> None:
            self._until = now() + self._load.seconds
            self._running = len(connections)
            for connection in connections:
                self._answered(connection)

        return await self._measured(self._load.seconds, start)

    def _answered(self, connection: Connection) -> None:
        if self._left == 0 or now() >= self._until:
            self._running -= 1
            if not self._running:
                self._finished.set()
            return
        self._left -= 1
        payload, request = next(self._payloads)
        if connection.closed:
            self._connections.discard(connection)
            self._open(Unsent(now(), payload, request))
        else:
            self._send(connection, now(), payload, request)


class OpenLoop(_Load):
    def __init__(
        self, address: Address, payloads: Sequence[Payload], load: Open, most: int
    ) -> None:
        super().__init__(address, payloads, load.leave_s)
        self._load = load
        self._most = min(load.connections, most)
        self._moments = deque(arrivals(load.rate, load.seconds))
        self._expected = len(self._moments)
        self._until = 0.0
        self._waiting: deque[Unsent] = deque()
        self._idle: list[Connection] = []
        self._opened = 0

    async def run(self) -> Run:
        first = await self._connect()
        self._idle.append(first)
        self._opened = 1
        timer = Timer(asyncio.get_running_loop(), lambda: self._due(timer))

        def start() -> None:
            began = now()
            self._until = began + self._load.seconds
            self._moments = deque(began + moment for moment in self._moments)
            self._due(timer)

        try:
            return await self._measured(self._load.seconds, start)
        finally:
            timer.close()

    def unsent(self) -> Iterator[Unsent]:
        yield from super().unsent()
        yield from self._waiting
        for moment in self._moments:
            yield Unsent(moment, *next(self._payloads))

    def _due(self, timer: Timer) -> None:
        """Everything whose moment has come joins the queue; the timer is set to the next one, and
        at last to the end: rates are of the whole time, also where little was due in it."""
        moment = now()
        while self._moments and self._moments[0] <= moment:
            self._waiting.append(Unsent(self._moments.popleft(), *next(self._payloads)))
        self._serve()
        if self._moments:
            timer.set(self._moments[0])
        elif moment < self._until:
            timer.set(self._until)
        else:
            self._finish()

    def _finish(self) -> None:
        if len(self._exchanges) == self._expected and now() >= self._until:
            self._finished.set()

    def _serve(self) -> None:
        while self._waiting:
            connection = self._kept()
            if connection is not None:
                one = self._waiting.popleft()
                self._send(connection, one.due, one.payload, one.request)
            elif self._opened < self._most:
                self._opened += 1
                self._open(self._waiting.popleft())
            else:
                return

    def _kept(self) -> Connection | None:
        """An idle connection that the server has not closed meanwhile."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
            self._drop(connection)
        return None

    def _drop(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._opened -= 1

    def _answered(self, connection: Connection) -> None:
        if connection.closed:
            self._drop(connection)
        else:
            self._idle.append(connection)
        self._finish()
        self._serve()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
