"""Several Tritons in virtual time, one of which hangs, lacks a model or is away for a while.

What the same looks like of real ones: tests/preprocess/test_triton_client.py.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import numpy as np

from preprocess.tensors import Tensor
from preprocess.triton.client import TritonClient
from preprocess.triton.errors import AwayError
from tests.preprocess import virtual_time

ONE, TWO = "127.0.0.1:1", "127.0.0.1:2"
INPUTS = [Tensor("input_ids", "INT32", np.ones((1, 3), np.int32))]
CALL_S = 0.05


class Playing:
    """A server whose calls take CALL_S; the class has what becomes of which."""

    hung: set[str]
    away: set[str]
    lacking: set[tuple[str, str]]
    probed: list[float]
    running: Counter[tuple[str, str]]
    most: Counter[tuple[str, str]]

    def __init__(self, address: str) -> None:
        self._address = address

    @classmethod
    def begin(cls) -> None:
        cls.hung, cls.away, cls.lacking = set(), set(), set()
        cls.probed, cls.running, cls.most = [], Counter(), Counter()

    async def is_live(self) -> bool:
        self.probed.append(time.monotonic())
        return await self._is_there()

    async def is_ready(self, model: str, version: int) -> bool:
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
