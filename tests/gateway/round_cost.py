"""Processor time of a round of golden requests: `python -m tests.gateway.round_cost`.

Three endpoints that answer a vector of 384 numbers at once, so that what is measured is all that a
round costs beside the endpoints' own work; and the comparison of such an answer alone.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
from starlette.responses import Response

from tests.gateway.played_host import Ours, Processor, host_of
from transformer_serving.contract.endpoint import Recorded
from transformer_serving.contract.golden import agrees
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.gateway.figures.metrics import Metrics
from transformer_serving.gateway.golden_rounds import GoldenRounds
from transformer_serving.gateway.short_way import ShortWay

VECTOR = [number / 1000 for number in range(384)]
ROUNDS = 500


def made() -> GoldenRounds:
    answer = Response(orjson.dumps(VECTOR), headers={VERSION_HEADER: "7"})
    processor = Processor(dict.fromkeys("abc", answer))
    for url in "abc":
        preprocess: Any = Ours()
        preprocess.endpoint = SimpleNamespace(
            golden={"text": url}, recorded=Recorded(VECTOR, 1e-3), bundle_version=7
        )
        processor.built(url, preprocess)
    host = host_of(processor)
    return GoldenRounds(host, ShortWay(host), Metrics().goldens)


def milliseconds(work: Callable[[], Any]) -> float:
    before = time.thread_time()
    work()
    return 1000 * (time.thread_time() - before) / ROUNDS


async def many(rounds: GoldenRounds) -> None:
    for _ in range(ROUNDS):
        await rounds._round(rounds._urls())
    assert all(row.compared and row.state == "ok" for row in rounds.results.values())


def main() -> None:
    rounds = made()
    spent = milliseconds(lambda: asyncio.run(many(rounds)))
    compared = milliseconds(lambda: [agrees(VECTOR, VECTOR, 1e-3) for _ in range(ROUNDS)])
    sys.stdout.write(
        f"a round of 3: {spent:.2f} ms, of which 3 comparisons {3 * compared:.2f} ms\n"
    )


if __name__ == "__main__":
    main()
