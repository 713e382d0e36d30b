"""Thousands of mixed requests with an engine's restart in the middle.

Each gets exactly the answers that its texts got one at a time, or an error that is due; nothing
hangs; and the worker ends with what it had at the start.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.engine.triton_server import TritonServer
from tests.gateway.conftest import Server
from tests.gateway.kept_connections import KeptConnections
from tests.gateway.text_serving import MODELS, TextServing
from tests.triton_text import back

REQUESTS = [600, pytest.param(10_000, marks=(pytest.mark.long, pytest.mark.spare))]
CALLERS = 32
ENDPOINTS = ("texts", "vectors")
WORDS = ("the", "quick", "brown", "fox", "kettle", "of", "tea", "two", "cups", "rain", "roof", "a")
LIMIT_S = 400


@pytest.fixture(scope="module")
def text_serving(own_text_serving: TextServing) -> TextServing:
    """Its Triton is killed."""
    return own_text_serving


@pytest.fixture(scope="module", params=["http", "grpc"])
def server(text_serving: TextServing, request: pytest.FixtureRequest) -> Iterator[Server]:
    # However slow the machine is, only those with a deadline of their own are refused.
    patient = {"TRANSFORMER_SERVING_MAX_WAIT_S": "600"}
    one = text_serving.gateway(TRANSFORMER_SERVING_TRANSPORT=request.param, **patient).start()
    try:
        yield one.wait_for("/health/ready")
    finally:
        one.stop()


@pytest.fixture
async def connections(server: Server) -> AsyncIterator[KeptConnections]:
    kept = KeptConnections(server.port)
    yield kept
    await kept.close()


@dataclass
class Load:
    """What is sent, by a seed, and what came of it."""

    seed: int
    expected: dict[tuple[str, str], Any] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    restarted: bool = False

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.texts = [self.text() for _ in range(250)]

    def text(self) -> str:
        """1 to 500 tokens with the two special ones; most texts are short."""
        longest = self.chance.choice((1, 10, 10, 30, 30, 60, 120, 240, 498))
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(1, longest)))

    def body(self) -> dict[str, Any]:
        kind = self.chance.random()
        size = 1 if kind < 0.8 else self.chance.randint(2, 10 if kind < 0.95 else 100)
        texts = self.chance.choices(self.texts, k=size)
        if self.chance.random() < 0.03:
            texts[self.chance.randrange(size)] += " [FAIL]"
        body: dict[str, Any] = {"text": texts if size > 1 else texts[0]}
        if self.chance.random() < 0.02:
            body["timeout_ms"] = self.chance.randint(1, 20)
        return body

    def check(self, endpoint: str, body: dict[str, Any], status: int, answer: Any) -> None:
        texts = body["text"] if isinstance(body["text"], list) else [body["text"]]
        code = "ok" if status == 200 else answer["code"]
        self.outcomes[code] += 1
        if status == 200:
            answers = answer if isinstance(body["text"], list) else [answer]
            assert answers == [self.expected[endpoint, text] for text in texts]
        elif code == "engine_failed":
            assert any("[FAIL]" in text for text in texts)
        elif code in ("deadline", "overloaded"):
            assert "timeout_ms" in body
        else:
            assert (status, code) == (503, "unavailable")
            assert self.restarted


async def one_at_a_time(load: Load, connections: KeptConnections) -> None:
    for endpoint in ENDPOINTS:
        for text in load.texts:
            status, answer = await connections.post(endpoint, {"text": text})
            assert status == 200, answer
            load.expected[endpoint, text] = answer


async def all_at_once(
    load: Load, requests: int, connections: KeptConnections, triton: TritonServer
) -> None:
    left = iter(range(requests))
    restart: list[asyncio.Task[None]] = []

    async def caller() -> None:
        for number in left:
            if number == requests // 2:
                load.restarted = True
                restart.append(asyncio.create_task(restart_of(triton)))
            endpoint, body = load.chance.choice(ENDPOINTS), load.body()
            status, answer = await connections.post(endpoint, body)
            load.check(endpoint, body, status, answer)
            if status == 503:
                # A restart takes seconds, and most requests are to be answered.
                await asyncio.sleep(3)

    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        await asyncio.gather(*restart)


async def restart_of(triton: TritonServer) -> None:
    triton.kill()
    await asyncio.to_thread(back, triton, *MODELS)


async def holdings(connections: KeptConnections) -> dict[str, int]:
    status, found = await connections.post("holdings", {})
    assert status == 200
    return dict(found)


@pytest.mark.parametrize("requests", REQUESTS)
async def test_thousands_of_requests(
    connections: KeptConnections, text_serving: TextServing, requests: int
) -> None:
    load = Load(random.randrange(10**6))
    print(f"seed {load.seed}")  # noqa: T201
    await one_at_a_time(load, connections)
    # Long lists start the tokenizer's threads and open the connections that are kept.
    big = {"text": load.texts[:100]}
    await asyncio.gather(*(connections.post(name, big) for name in ENDPOINTS for _ in range(4)))
    await connections.close()
    start = await holdings(connections)
    assert start["queues"] >= len(ENDPOINTS)

    await all_at_once(load, requests, connections, text_serving.triton)
    print(dict(load.outcomes))  # noqa: T201
    assert load.outcomes["ok"] > requests * 0.6
    # Of three in a hundred that are to fail.
    assert load.outcomes["engine_failed"] > requests * 0.002
    assert load.outcomes["unavailable"] > 0

    await connections.close()
    async with asyncio.timeout(60):
        while True:
            end = await holdings(connections)
            if all(end[name] <= start[name] for name in start if name != "files"):
                break
            await asyncio.sleep(0.2)
    # As many connections to Triton are kept as calls ran at once.
    assert end["files"] <= start["files"] + 8
    assert end["queues"] == start["queues"]
    assert (end["tokens"], end["waiting"], end["slots"], end["server_calls"]) == (0, 0, 0, 0)
