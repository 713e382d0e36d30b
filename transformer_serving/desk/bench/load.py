"""The two loads: a closed loop of N clients, and an open loop at a rate that waits for nobody.

In the open loop a request's latency counts from the moment at which it was due, whether or not
the server let it be sent then. So a server that stalls pays for all requests that its stall held
up, not only for the one that met it ("coordinated omission").

Tested by tests/bench/test_load.py and tests/bench/test_time_limit.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import uvloop

from transformer_serving.desk.bench.connection import NO_ANSWER, Address, most_connections
from transformer_serving.desk.bench.exchange import Closed, Exchange, Open, Payload, Run
from transformer_serving.desk.bench.loops import ClosedLoop, OpenLoop, arrivals

# What is sent where, and how.
Job = tuple[Address, Sequence[Payload], Closed | Open]


def run(address: Address, payloads: Sequence[Payload], load: Closed | Open) -> Run:
    """Send the load and wait for its answers. Raises OSError when nothing listens at all."""
    return run_together([(address, payloads, load)])[0]


def run_together(jobs: Sequence[Job]) -> list[Run]:
    """Several loads at the same time, from one event loop; each run's `cpu_s` is that of them all.

    An open loop opens as many connections at a time as there are files for. Raises OSError when
    nothing listens at one of the addresses, or where a closed loop has more clients than files.
    """
    most = most_connections() // len(jobs)

    async def every() -> list[Run]:
        return await asyncio.gather(*(_prepared(*job, most).run() for job in jobs))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(every())


def _prepared(
    address: Address, payloads: Sequence[Payload], load: Closed | Open, most: int
) -> ClosedLoop | OpenLoop:
    if isinstance(load, Closed):
        return ClosedLoop(address, payloads, load)
    return OpenLoop(address, payloads, load, most)


__all__ = [
    "NO_ANSWER", "Closed", "Exchange", "Job", "Open", "Payload", "Run", "arrivals", "run",
    "run_together",
]  # fmt: skip
