"""Bodies that weigh more than they seem, and another client beside them:
`python -m tests.gateway.heavy_bodies` prints that client's times and the worker's memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.gateway.conftest import Server, running_session
from tests.gateway.empty_blocks import of_empty_blocks
from tests.gateway.kept_connections import KeptConnections

HEAD = b"POST /serve/ours HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
MIB = 2**20
_REST_S = 1.0  # between two attacks; the parts of one take as long as they take

Statuses = Counter[int | str]


@dataclass
class Watch:
    """What another client sees, milliseconds, and the worker's largest memory, MiB."""

    server: Server
    times: list[float] = field(default_factory=list)
    memory: float = 0.0
    failed: int = 0

    async def run(self) -> None:
        connections = KeptConnections(self.server.port)
        while True:
            begun = time.perf_counter()
            status, _ = await connections.post("ours", {"text": "a"})
            self.times.append(1000 * (time.perf_counter() - begun))
            self.failed += status != 200
            self.memory = max(self.memory, self.server.resident_mib())
            await asyncio.sleep(0.005)

    def percentile(self, percent: int) -> float:
        return statistics.quantiles(self.times, n=100)[percent - 1]


def of_many(unit: bytes, size: int) -> bytes:
    return b"[" + b",".join([unit] * (size // (len(unit) + 1))) + b"]"


_GZIP = b"content-encoding: gzip\r\n"


def packed(raw: bytes) -> tuple[bytes, bytes]:
    return _GZIP, gzip.compress(raw)


async def post(port: int, body: bytes, more: bytes = b"", head: bytes = HEAD) -> int | str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head += more + b"content-length: %d\r\n\r\n" % len(body)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(head + body)
            await writer.drain()
        return await status_of(reader)
    finally:
        writer.close()


async def stall(port: int, declared: bytes, body: bytes) -> int | str:
    """Send, and then nothing; the last byte never comes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(HEAD + declared + b"\r\n\r\n" + body)
            await writer.drain()
        return await status_of(reader)
    finally:
        writer.close()


async def status_of(reader: asyncio.StreamReader) -> int | str:
    try:
        async with asyncio.timeout(150):
            line = await reader.readline()
    except ConnectionError:
        return "reset"
    return int(line.split()[1]) if line else "closed"


def one_by_one(count: int, more: bytes, body: bytes) -> Callable[[int], Awaitable[Statuses]]:
    async def attack(port: int) -> Statuses:
        return Counter([await post(port, body, more) for _ in range(count)])

    return attack


def at_once(count: int, more: bytes, body: bytes) -> Callable[[int], Awaitable[Statuses]]:
    async def attack(port: int) -> Statuses:
        return Counter(await asyncio.gather(*(post(port, body, more) for _ in range(count))))

    return attack


def stalled(count: int, declared: bytes, body: bytes) -> Callable[[int], Awaitable[Statuses]]:
    async def attack(port: int) -> Statuses:
        every = (stall(port, declared, body) for _ in range(count))
        return Counter(await asyncio.gather(*every))

    return attack


@cache
def attacks() -> dict[str, tuple[Callable[[int], Awaitable[Statuses]], set[int | str]]]:
    """By name: what it does, and the statuses that it may get."""
    lists, objects = of_many(b"[]", 16_000_000), of_many(b'{"a":1}', 16_000_000)
    # What the endpoint's own code does with a body is not what is looked at.
    refused = b'{"raise": "value", "text": "a", "x": '
    numbers = refused + of_many(b"0.123456789", 1_000_000) + b"}"
    keys = refused + b"{" + b",".join(b'"%017d":1' % one for one in range(90_000)) + b"}}"
    # Last, so that whatever looks at the members before has all of it beside them.
    members = gzip.compress(b"") * 1000 + gzip.compress(
        refused + b'"' + b"a" * 1_960_000 + b'"}', compresslevel=0
    )
    blocks = of_empty_blocks(b'{"raise": "value", "text": "a"}', 1_990_000, 31)
    chunk = b"f4240\r\n" + b"a" * 1_000_000 + b"\r\n"
    return {
        "none": (one_by_one(20, b"", b"{}"), {200}),
        "gzip of 16 MB of lists, 20 one by one": (one_by_one(20, *packed(lists)), {413}),
        "gzip of 16 MB of lists, 20 at once": (at_once(20, *packed(lists)), {413}),
        "gzip of 16 MB of objects, 20 one by one": (one_by_one(20, *packed(objects)), {413}),
        "2 MB of lists, 20 at once": (at_once(20, b"", lists[:1_999_998] + b"]"), {413}),
        "gzip of 2 MB of lists, 20 at once": (
            at_once(20, *packed(lists[:1_999_998] + b"]")), {413},
        ),
        "1 MB of 90,000 numbers, 20 at once": (at_once(20, b"", numbers), {422}),
        "2 MB of 90,000 keys, 20 at once": (at_once(20, b"", keys), {422}),
        "2 MB of commas in a text, 20 at once": (
            at_once(20, b"", refused + b'"' + b"," * 1_990_000 + b'"}'), {422},
        ),
        "gzip of 1,000 empty members and 2 MB, 20 at once": (at_once(20, _GZIP, members), {422}),
        "gzip of 2 MB of empty blocks, 20 at once": (at_once(20, _GZIP, blocks), {422}),
        "80 stalled, 16 MB declared": (
            stalled(80, b"content-length: 16000000", b"a" * 15_999_999), {413, "reset"},
        ),
        "80 stalled, 2 MB declared": (
            stalled(80, b"content-length: 2000000", b"a" * 1_999_999), {400, 503, "reset"},
        ),
        "80 stalled, in chunks": (
            stalled(80, b"transfer-encoding: chunked", chunk + chunk[:-9]), {400, 503, "reset"},
        ),
    }  # fmt: skip


@contextlib.contextmanager
def default_gateway(**settings: str) -> Iterator[Server]:
    """With the limits as they come, and a control plane of its own."""
    with tempfile.TemporaryDirectory() as name, running_session(Path(name)) as session:
        server = session.gateway(**settings).start().wait_for("/health/ready")
        try:
            yield server
        finally:
            server.stop()


def another_process() -> Executor:
    """For what attacks: what it computes must not hold up the client that is watched."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), attacks)


def _attack(name: str, port: int) -> Statuses:
    async def send() -> Statuses:
        return await attacks()[name][0](port)

    return asyncio.run(send())


async def watched(server: Server, name: str, attacker: Executor) -> tuple[Statuses, Watch]:
    """One of the attacks, sent from `attacker`."""
    loop = asyncio.get_running_loop()
    # Its bodies are made before anything is measured.
    await loop.run_in_executor(attacker, len, "")
    watch = Watch(server)
    watching = asyncio.create_task(watch.run())
    await asyncio.sleep(_REST_S)
    watch.times.clear()
    statuses = await loop.run_in_executor(attacker, _attack, name, server.port)
    await asyncio.sleep(_REST_S)
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    return statuses, watch


async def idle_mib(server: Server) -> float:
    """When it has stopped growing: ClearML's reporting takes its part half a minute after start."""
    memory = [server.resident_mib()]
    while len(memory) < 50 or memory[-1] > memory[-20] + 1:
        await asyncio.sleep(1)
        memory.append(server.resident_mib())
    return memory[-1]


async def measure(server: Server) -> None:
    idle = await idle_mib(server)
    sys.stdout.write(f"idle {idle:.0f} MiB\n| attack | statuses | p50 ms | p99 ms | most MiB |\n")
    with another_process() as attacker:
        for name in attacks():
            statuses, watch = await watched(server, name, attacker)
            sys.stdout.write(
                f"| {name} | {dict(statuses)} | {watch.percentile(50):.1f} | "
                f"{watch.percentile(99):.1f} | {watch.memory:.0f} |\n"
            )
            sys.stdout.flush()
            assert not watch.failed


def main() -> None:
    with default_gateway() as server:
        asyncio.run(measure(server))


if __name__ == "__main__":
    main()
