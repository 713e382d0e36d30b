"""Several Tritons in virtual time, one of which hangs, lacks a model or is away for a while.

What the same looks like of real ones: tests/preprocess/test_triton_client.py.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from preprocess.passage import Passage
from preprocess.queue.admission import Admission
from preprocess.queue.coalesce import Coalescer
from preprocess.stats import EndpointFigures
from preprocess.tensors import Tensor
from preprocess.tokens import Encoded
from preprocess.triton.client import TritonClient
from preprocess.triton.errors import AwayError
from tests.preprocess import virtual_time
from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ServingError

ONE, TWO = "127.0.0.1:1", "127.0.0.2:1"
INPUTS = [Tensor("input_ids", "INT32", np.ones((1, 3), np.int32))]
CALL_S = 0.05
MOST = 2


@pytest.fixture
def endpoint(endpoint_fields: dict[str, Any]) -> Endpoint:
    return read_endpoint(json.dumps(endpoint_fields))


class Playing:
    """A server whose calls take CALL_S; the class has what becomes of which."""

    hung: set[str]
    away: set[str]
    lacking: set[tuple[str, str]]
    probed: list[float]
    looked_at: list[float]
    running: Counter[tuple[str, str]]
    most: Counter[tuple[str, str]]

    def __init__(self, address: str) -> None:
        self._address = address

    @classmethod
    def begin(cls) -> None:
        cls.hung, cls.away, cls.lacking = set(), set(), set()
        cls.probed, cls.looked_at = [], []
        cls.running, cls.most = Counter(), Counter()

    async def is_live(self) -> bool:
        self.probed.append(time.monotonic())
        return await self._is_there()

    async def is_ready(self, model: str, version: int) -> bool:
        self.looked_at.append(time.monotonic())
        return await self._is_there() and (self._address, model) not in self.lacking

    async def _is_there(self) -> bool:
        if self._address in self.hung:
            await asyncio.sleep(10**6)
        if self._address in self.away:
            raise AwayError("it is away", whole=True, begun=False)
        return True

    async def infer(self, model: str, version: int, inputs: Any, outputs: Any) -> list[Any]:
        here = self._address, model
        if here in self.lacking:
            raise AwayError("it lacks the model", whole=False, begun=False)
        self.running[here] += 1
        self.most[here] = max(self.most[here], self.running[here])
        try:
            await self._is_there()
            await asyncio.sleep(CALL_S)
        finally:
            self.running[here] -= 1
        return [np.zeros((len(inputs[0].array), 2), np.float32)]

    def close(self) -> None:
        return


class Woken:
    """A queue that notes when it was woken."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def wake(self) -> None:
        self.at.append(time.monotonic())


def test_one_that_is_away_is_looked_for_twice_a_second_and_its_return_is_told_at_once() -> None:
    async def play() -> tuple[list[float], float, list[float]]:
        Playing.begin()
        Playing.away = {ONE}
        client, queue = TritonClient(f"{ONE},{TWO}", Playing), Woken()
        client.queues.add(queue)
        began = time.monotonic()
        for _ in range(2):
            await client.infer("m", 1, INPUTS, (), began + 60)
        await asyncio.sleep(5.0)
        while_away = list(Playing.probed)
        Playing.away.clear()
        back = time.monotonic()
        await asyncio.sleep(5.0)
        return [at - began for at in while_away], back, queue.at

    probed, back, woken = virtual_time.run(play())
    assert len(probed) in (9, 10)
    [told] = woken
    assert back <= told <= back + 0.5 + 1e-6


def queue_of(client: TritonClient, endpoint: Endpoint) -> Coalescer:
    async def call(inputs: list[Tensor], deadline: float) -> list[Any]:
        return await client.infer("m", 1, inputs, (), deadline, MOST)

    queue = Coalescer(
        endpoint,
        call,
        Admission(400_000, 2.0),
        lambda: client.slots("m", 1, MOST),
        EndpointFigures("m"),
    )
    client.queues.add(queue)
    return queue


async def ask(queue: Coalescer, within_s: float = 20.0, asker: Passage | None = None) -> str:
    """What becomes of a request: "ok" or the error's code."""
    try:
        text, until = Encoded([1, 5, 5], [0] * 3), time.monotonic() + within_s
        (await queue.infer([text], until, asker or Passage({}))).result()
    except ServingError as error:
        return error.kind.code
    return "ok"


async def offer(queue: Coalescer, seconds: float) -> Counter[str]:
    """What becomes of requests for three full calls, ten times a second."""
    asked = []
    for _ in range(int(10 * seconds)):
        asked += [asyncio.ensure_future(ask(queue)) for _ in range(24)]
        await asyncio.sleep(0.1)
    return Counter(await asyncio.gather(*asked))


def test_one_that_hangs_takes_of_an_endpoint_only_its_own_slots(endpoint: Endpoint) -> None:
    """Though the other one, which answers, has more calls of other endpoints to run."""

    async def play() -> Counter[str]:
        Playing.begin()
        Playing.lacking = {(ONE, "busy")}
        client = TritonClient(f"{ONE},{TWO}", Playing)

        async def others() -> None:
            while True:
                await client.infer("busy", 1, INPUTS, (), time.monotonic() + 60)

        callers = [asyncio.ensure_future(others()) for _ in range(10)]
        queue = queue_of(client, endpoint)
        assert (await offer(queue, 1.0)).keys() == {"ok"}
        Playing.hung = {ONE}
        found = await offer(queue, 20.0)
        for one in callers:
            one.cancel()
        return found

    found = virtual_time.run(play())
    assert Playing.most[ONE, "m"] == MOST
    # What had left for the one that hangs.
    assert found.pop("deadline") <= MOST * 8
    assert found.keys() == {"ok"}


def test_one_that_lacks_a_model_is_no_place_for_its_calls_until_it_has_it(
    endpoint: Endpoint,
) -> None:
    async def play() -> tuple[int, Counter[str]]:
        Playing.begin()
        Playing.lacking = {(ONE, "m")}
        client = TritonClient(f"{ONE},{TWO}", Playing)
        queue = queue_of(client, endpoint)
        await offer(queue, 1.0)
        Playing.most.clear()
        assert client.slots("m", 1, MOST) == MOST
        assert client.slots("another", 1, MOST) == 2 * MOST
        assert (await offer(queue, 5.0)).keys() == {"ok"}
        most = Playing.most[TWO, "m"]
        # All of its calls hang on the other one when it has the model.
        Playing.hung = {TWO}
        hanging = [asyncio.ensure_future(ask(queue)) for _ in range(100)]
        await asyncio.sleep(5.0)
        # Nobody comes any more, and no call ends.
        Playing.lacking.clear()
        return most, Counter(await asyncio.gather(*hanging))

    most, waited = virtual_time.run(play())
    assert most == MOST
    # What had left for the one that hangs.
    assert waited.pop("deadline") <= MOST * 8
    assert waited.keys() == {"ok"}


def test_one_that_lacks_a_model_is_looked_at_while_somebody_waits_and_no_longer(
    endpoint: Endpoint,
) -> None:
    """Also where those that wait came before anybody knew that it lacks the model."""

    async def play() -> tuple[list[float], list[float]]:
        Playing.begin()
        Playing.lacking, Playing.hung = {(ONE, "m")}, {TWO}
        client = TritonClient(f"{ONE},{TWO}", Playing)
        queue = queue_of(client, endpoint)
        began = time.monotonic()
        waiting = [asyncio.ensure_future(ask(queue, 5.0)) for _ in range(100)]
        await asyncio.gather(*waiting)
        while_waiting = [at - began for at in Playing.looked_at]
        await asyncio.sleep(60.0)
        return while_waiting, [at - began for at in Playing.looked_at]

    looked, every = virtual_time.run(play())
    assert len(looked) in (9, 10)
    # One may have been arranged.
    assert len(every) <= len(looked) + 1


@pytest.mark.parametrize("restarts", [False, True])
def test_calls_that_hang_on_one_that_the_name_no_longer_has_take_no_slots_of_the_others(
    endpoint: Endpoint, restarts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the other one is away for a while."""

    async def play() -> Counter[str]:
        Playing.begin()
        hosts = ["127.0.0.1", "127.0.0.2"]

        async def getaddrinfo(host: str, port: int, *, type: int) -> Any:
            return [(socket.AF_INET, type, 6, "", (host, port)) for host in hosts]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        client = TritonClient("triton:1", Playing)
        queue = queue_of(client, endpoint)
        await offer(queue, 1.0)
        Playing.hung = {ONE}
        await offer(queue, 2.0)
        assert Playing.running[ONE, "m"] == MOST
        hosts.remove("127.0.0.1")
        if restarts:
            Playing.away = {TWO}
        await offer(queue, 20.0)
        Playing.away.clear()
        return await offer(queue, 5.0)

    assert virtual_time.run(play()).keys() == {"ok"}


def test_a_call_that_was_carried_to_one_that_hangs_takes_no_slot_of_the_one_that_is_back(
    endpoint: Endpoint,
) -> None:
    async def play() -> Counter[str]:
        Playing.begin()
        client = TritonClient(f"{ONE},{TWO}", Playing)
        queue = queue_of(client, endpoint)
        await offer(queue, 1.0)
        Playing.hung = {ONE}
        await offer(queue, 2.0)
        Playing.away = {TWO}
        await offer(queue, 5.0)
        assert Playing.running[ONE, "m"] > MOST
        Playing.away.clear()
        await asyncio.sleep(5.0)
        return await offer(queue, 5.0)

    assert virtual_time.run(play()).keys() == {"ok"}
