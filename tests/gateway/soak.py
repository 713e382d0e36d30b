"""Ten minutes of load; the worker must not grow: `python -m tests.gateway.soak`.

32 callers, texts of many lengths, a few bad ones. The slope is a straight line through the
resident memory of the second half: by then the allocators have what they want.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time

from tests.gateway.conftest import Server
from tests.gateway.kept_connections import KeptConnections
from tests.gateway.test_ten_thousand import ENDPOINTS, Load
from tests.gateway.text_serving import TextServing, text_serving_alone

CALLERS = 32
LIMIT_MIB_A_MINUTE = 1.0


async def soak(server: Server, load: Load, seconds: float) -> list[tuple[float, float]]:
    """Minutes since the start, and MiB, every two seconds."""
    connections = KeptConnections(server.port)
    start = time.monotonic()
    samples: list[tuple[float, float]] = []

    async def caller() -> None:
        while time.monotonic() - start < seconds:
            status, _ = await connections.post(load.chance.choice(ENDPOINTS), load.body())
            load.outcomes[str(status)] += 1

    callers = [asyncio.create_task(caller()) for _ in range(CALLERS)]
    while time.monotonic() - start < seconds:
        await asyncio.sleep(2)
        samples.append(((time.monotonic() - start) / 60, server.resident_mib()))
    await asyncio.gather(*callers)
    await connections.close()
    return samples


def run(text_serving: TextServing, load: Load, seconds: float) -> float:
    """MiB a minute."""
    server = text_serving.gateway().start().wait_for("/health/ready")
    try:
        samples = asyncio.run(soak(server, load, seconds))
    finally:
        server.stop()
    half = samples[len(samples) // 2 :]
    slope = statistics.linear_regression([at for at, _ in half], [mib for _, mib in half]).slope
    first, last = samples[0][1], samples[-1][1]
    sys.stdout.write(
        f"{dict(load.outcomes)}\n{first:.0f} MiB at the start, {last:.0f} at the end, "
        f"{slope:+.2f} MiB a minute in the second half\n"
    )
    return slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    with text_serving_alone() as serving:
        slope = run(serving, Load(options.seed), options.seconds)
    if slope >= LIMIT_MIB_A_MINUTE:
        sys.exit(f"error: the worker grows by more than {LIMIT_MIB_A_MINUTE} MiB a minute")


if __name__ == "__main__":
    main()
