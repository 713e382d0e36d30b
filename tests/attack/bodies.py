"""Bodies that weigh more than they seem, and what the worker and another client make of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from tests.attack.ground import Ground
from tests.attack.seen import Seen, counted
from tests.gateway.heavy_bodies import (
    MIB,
    Statuses,
    another_process,
    attacks,
    idle_mib,
    watched,
)
from transformer_serving.gateway.settings import read_settings

# What an endpoint's own code says to them there, ours says as an unknown field.
_OURS: dict[int | str, int | str] = {200: 400, 422: 400}
_IDLE_S = 60.0


def heavy(*words: str, first: str) -> Callable[[Ground], Seen]:
    """The attacks whose names have one of the words; the short form has the `first` alone."""

    def run(ground: Ground) -> Seen:
        every = [name for name in attacks() if any(word in name for word in words)]
        return asyncio.run(_sent(ground, [first] if ground.short else every))

    return run


async def _sent(ground: Ground, names: Sequence[str]) -> Seen:
    server = ground.server()
    total = read_settings({}).body_memory_bytes / MIB
    idle = await _idle_mib(ground)
    statuses, most, slowest, faults = Statuses(), 0.0, 0.0, list[str]()
    with another_process() as attacker:
        for name in names:
            found, watch = await watched(server, name, attacker)
            statuses.update(found)
            most = max(most, watch.memory)
            slowest = max(slowest, watch.percentile(99))
            if not set(found) <= {_OURS.get(status, status) for status in attacks()[name][1]}:
                faults.append(f"{name}: {counted(found)}")
            if watch.failed:
                faults.append(f"{name}: the other client was refused {watch.failed} times")
    if most >= 1.2 * idle + total:
        faults.append(f"more than 1.2 x {idle:.0f} + {total:.0f} MiB")
    told = f"{counted(statuses)}; {idle:.0f} to {most:.0f} MiB; another client is answered"
    times = f"its p99 at most {slowest:.0f} ms"
    return Seen("; ".join((told, *faults)), not faults, times)


async def _idle_mib(ground: Ground) -> float:
    """At rest, as soon as the worker is old enough for that."""
    server = ground.server()
    age = time.time() - ground.process().create_time()
    if ground.short or age > _IDLE_S:
        return server.resident_mib()
    return await idle_mib(server)
