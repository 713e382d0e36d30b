"""Streams of which half leave at a random moment; nothing may stay behind or grow:
`python -m tests.stack.stream_soak`.

A stack of its own with the generation demo, as a user starts it. Afterwards the engine's cache is
empty, nothing runs or waits, the worker counts no stream, and threads and descriptors are those of
before. The slope is a straight line through the memory of worker and Triton in the second half.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.engine.triton_server import wait_until
from tests.stack.conftest import Stack, started
from tests.stack.footprint import Footprint, footprint
from transformer_serving.desk.demo.generation import PROMPT

NAME = "text_generation"
AT_ONCE = 32
NEW_TOKENS = 60
LIMIT_MIB_A_MINUTE = 3.0
# Until then everything is new.
FIRST_CROWD_MIN = 0.5
# A worker's thread pools are filled by the first crowd.
THREADS_MORE, DESCRIPTORS_MORE = 40, 20


@dataclass
class Growth:
    """Minutes and MiB of one part, in their order."""

    seen: list[tuple[float, float]] = field(default_factory=list)

    def add(self, minutes: float, mib: float) -> None:
        self.seen.append((minutes, mib))

    def slope(self) -> float:
        """MiB a minute, in the second half."""
        half = self.seen[len(self.seen) // 2 :]
        return statistics.linear_regression([at for at, _ in half], [mib for _, mib in half]).slope

    def beside_learning(self) -> float:
        """MiB a minute, of an engine, beside what grows with the logarithm of the time.

        It keeps what it compiled for numbers of tokens that it had not met, of which ever
        fewer are new. What is lost with each stream is lost at one pace.
        """
        minutes, mib = np.array([look for look in self.seen if look[0] >= FIRST_CROWD_MIN]).T
        grown = np.stack([np.ones_like(minutes), np.log(minutes), minutes], axis=1)
        return float(np.linalg.lstsq(grown, mib, rcond=None)[0][2])


@dataclass
class Soak:
    """`left` streams were closed by their caller, `outcomes` is how the others ended."""

    port: int
    chance: random.Random
    left: int = 0
    typical_s: float = 1.0
    outcomes: Counter[str] = field(default_factory=Counter)
    worker: Growth = field(default_factory=Growth)
    triton: Growth = field(default_factory=Growth)

    @property
    def streams(self) -> int:
        return self.left + self.outcomes.total()

    async def stream(self) -> None:
        """Half of them leave at any moment of what the last whole one took, its first token's wait
        included: tokens of many streams come gathered, so that events would be a coarse measure."""
        leaves = self.chance.random() < 0.5
        patience = self.chance.uniform(0, self.typical_s) if leaves else 120
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        begun = time.monotonic()
        try:
            async with asyncio.timeout(patience):
                writer.write(self.request())
                raw = await reader.read()
        except TimeoutError:
            if not leaves:
                raise
            self.left += 1
            return
        finally:
            writer.close()
        ended = ending(raw)
        if ended == "whole":
            self.typical_s = time.monotonic() - begun
        self.outcomes[ended] += 1

    def request(self) -> bytes:
        parameters = {
            "ignore_eos": True, "max_new_tokens": NEW_TOKENS,
            "do_sample": True, "seed": self.chance.randrange(2**31),
        }  # fmt: skip
        raw = json.dumps({"text": PROMPT, "parameters": parameters, "stream": True}).encode()
        head = (
            f"POST /serve/{NAME} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            f"connection: close\r\ncontent-length: {len(raw)}\r\n\r\n"
        )
        return head.encode() + raw

    async def run(self, stack: Stack, count: int, seconds: float) -> None:
        """At least so many streams, for at least so long."""
        begun = time.monotonic()

        async def caller() -> None:
            while self.streams < count or time.monotonic() - begun < seconds:
                async with asyncio.timeout(120):
                    await self.stream()

        callers = [asyncio.create_task(caller()) for _ in range(AT_ONCE)]
        while not all(one.done() for one in callers):
            await asyncio.wait(callers, timeout=2)
            seen = await asyncio.to_thread(footprint, stack)
            minutes = (time.monotonic() - begun) / 60
            self.worker.add(minutes, seen.worker_mb)
            self.triton.add(minutes, seen.triton_mb)
        await asyncio.gather(*callers)


def ending(raw: bytes) -> str:
    """How an answer ended that the server sent to its end."""
    status = raw.split(b" ", 2)[1].decode()
    if status != "200":
        return f"status {status}"
    return "whole" if b"data: [DONE]" in raw else "an error in the stream"


def figures(port: int) -> dict[str, float]:
    """Of the endpoint, on the page at `port`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    rows = re.findall(rf'^(\w+){{[^}}]*"[^"]*{NAME}[^"]*"[^}}]*}} ([-+.\de]+)$', page, re.MULTILINE)
    return {name: float(value) for name, value in rows}


def remains(stack: Stack) -> dict[str, float]:
    """What must be nothing when every caller has gone."""
    worker, engine = figures(stack.base), figures(stack.base + 3)
    own = {name.rpartition("_generation_")[2]: value for name, value in engine.items()}
    return {
        "streams in the worker": worker["transformer_serving_running_streams"],
        **{name: own[name] for name in ("running", "waiting", "cache_use", "cache_reserved")},
    }


def faults(soak: Soak, stack: Stack, before: Footprint) -> list[str]:
    found = [f"{count} x {ended}" for ended, count in soak.outcomes.items() if ended != "whole"]
    try:
        wait_until(lambda: not any(remains(stack).values()), 20)
    except AssertionError:
        found.append(f"left behind: {remains(stack)}")
    after = footprint(stack)
    if after.threads > before.threads + THREADS_MORE:
        found.append(f"{after.threads} threads after {before.threads}")
    if after.descriptors > before.descriptors + DESCRIPTORS_MORE:
        found.append(f"{after.descriptors} descriptors after {before.descriptors}")
    return found


def soaked(stack: Stack, soak: Soak, count: int, seconds: float) -> list[str]:
    """What is wrong afterwards. The first crowd comes before anything is counted."""
    asyncio.run(Soak(soak.port, soak.chance).run(stack, 2 * AT_ONCE, 0))
    before = footprint(stack)
    asyncio.run(soak.run(stack, count, seconds))
    return faults(soak, stack, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    sys.stdout.write(f"seed {options.seed}\n")
    with tempfile.TemporaryDirectory() as folder, started(Path(folder)) as stack:
        stack.run("up", "--demo", "generation")
        soak = Soak(stack.base, random.Random(options.seed))
        wrong = soaked(stack, soak, options.streams, options.seconds)
    sys.stdout.write(
        f"{soak.streams} streams, {AT_ONCE} at once: {soak.left} left, {dict(soak.outcomes)}\n"
    )
    for name, part, pace in (
        ("the worker", soak.worker, Growth.slope),
        ("Triton, beside what its engine learns,", soak.triton, Growth.beside_learning),
    ):
        (minutes, last), (_, first) = part.seen[-1], part.seen[0]
        sys.stdout.write(f"{name} {first:.0f} MiB at the start, {last:.0f} at the end")
        if minutes > 1:
            a_minute = pace(part)
            sys.stdout.write(f", {a_minute:+.2f} a minute")
            if a_minute >= LIMIT_MIB_A_MINUTE:
                wrong.append(f"{name} grows by {a_minute:.1f} MiB a minute")
        sys.stdout.write("\n")
    if wrong:
        sys.exit("error: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
