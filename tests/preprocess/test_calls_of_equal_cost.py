"""Before an engine whose calls take nearly as long for one text as for many, as a GPU's do: what is
answered, in virtual time. Two calls may be in flight, and the second one only waits for the first.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from preprocess.tensors import Tensor
from tests.preprocess import virtual_time
from tests.preprocess.test_overload import Answer, Stage
from transformer_serving.contract.endpoint import Endpoint, read_endpoint

CALL_S, TOKEN_S = 0.03, 0.00002
TEXTS = 64
SECONDS = 4.0


@pytest.fixture
def endpoint(endpoint_fields: dict[str, Any]) -> Endpoint:
    endpoint_fields["tokens"]["buckets"] = [8, 16, 20, 24, 32]
    endpoint_fields["limits"] |= {"max_batch_size": TEXTS, "max_texts": 512, "max_tokens": 60_000}
    assert "max_call_tokens" not in endpoint_fields["limits"]
    return read_endpoint(json.dumps(endpoint_fields))


def took(texts: int, length: int) -> float:
    return CALL_S + TOKEN_S * texts * length


# Texts a second of full calls.
MOST = TEXTS / took(TEXTS, 20)


@dataclass
class Gpu(Stage):
    """`rate` is what it can do; so many servers, and what waits for each waits its turn."""

    servers: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queue.slots = lambda: 2 * self.servers
        self.busy_until = [self.began] * self.servers

    async def engine(self, inputs: list[Tensor], deadline: float) -> Any:
        texts, length = inputs[0].array.shape
        self.computed += texts
        if self.hangs:
            self.hangs = False
            await asyncio.sleep(100)
        at = self.busy_until.index(min(self.busy_until))
        self.busy_until[at] = max(self.busy_until[at], time.monotonic()) + took(texts, length)
        await asyncio.sleep(self.busy_until[at] - time.monotonic())
        return [np.zeros((texts, 2), np.float32)]

    def answered(self, status: int) -> float:
        """In the second half, of what it can do."""
        counted = [a for a in self.answers if a.status == status and SECONDS / 2 <= a.at < SECONDS]
        return len(counted) / (SECONDS / 2 * self.rate)


def played(endpoint: Endpoint, times: float, deadline_s: float | None, servers: int = 1) -> Gpu:
    async def play() -> Gpu:
        stage = Gpu(endpoint, servers * MOST, servers=servers)
        await stage.offer(times, SECONDS, deadline_s=deadline_s)
        await asyncio.wait(stage.running)
        return stage

    stage: Gpu = virtual_time.run(play())
    return stage


@pytest.mark.parametrize("servers", [1, 2])
def test_half_of_what_it_can_do_is_answered_whole(endpoint: Endpoint, servers: int) -> None:
    """Also where nobody has time for three calls."""
    stage = played(endpoint, 0.5, 2.5 * took(TEXTS, 20), servers)
    late = [a for a in stage.answers if a.status != 200 and a.at > 1]
    assert not late
    assert max(stage.took(200)) <= 2.5 * took(TEXTS, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deadline_s", "part"), [(0.07, 0.7), (0.1, 0.95), (0.15, 0.95), (None, 0.95)]
)
def test_of_four_times_more_it_does_what_it_can(
    endpoint: Endpoint, deadline_s: float | None, part: float
) -> None:
    """Of texts that have time for little more than one call, too."""
    stage = played(endpoint, 4.0, deadline_s)
    assert stage.answered(200) >= part
    # Those of the beginning, when nothing is known of the engine, are late.
    assert stage.answered(504) <= 0.01
    assert max(stage.took(503)) == 0


def test_a_second_call_gets_what_comes_while_the_first_runs(endpoint: Endpoint) -> None:
    """Of callers that ask again at once nobody waits for more than the call that runs and the next
    one, which leaves when that one is about to end.
    """

    async def play() -> Gpu:
        stage = Gpu(endpoint, MOST)

        async def again(after_s: float) -> None:
            await asyncio.sleep(after_s)
            while time.monotonic() < stage.began + SECONDS:
                await stage.ask()

        await asyncio.gather(*(again(0.0007 * at) for at in range(TEXTS)))
        return stage

    stage = virtual_time.run(play())
    assert {a.status for a in stage.answers} == {200}
    assert stage.answered(200) >= 0.6
    assert max(a.took for a in stage.answers if a.at > 1) <= 2 * took(TEXTS, 20)


@pytest.mark.parametrize("pause_s", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("servers", [1, 2])
def test_a_call_that_hangs_holds_no_other(endpoint: Endpoint, servers: int, pause_s: float) -> None:
    """But for the time that it would have taken."""

    async def play() -> tuple[bool, list[Answer]]:
        stage = Gpu(endpoint, MOST, servers=servers)

        async def again(after_s: float) -> None:
            for _ in range(20):
                await asyncio.sleep(after_s)
                await stage.ask()

        await asyncio.gather(*(again(0.004 * at) for at in range(8)))
        waits_behind = stage.queue.dispatch.pace.waits_behind
        stage.hangs = True
        hanging = asyncio.ensure_future(stage.ask())
        await asyncio.sleep(0.001)
        asked = []
        for _ in range(10):
            asked.append(await stage.ask())
            await asyncio.sleep(pause_s)
        hanging.cancel()
        await asyncio.wait([hanging])
        return waits_behind, asked

    waits_behind, asked = virtual_time.run(play())
    assert waits_behind == (servers == 1)
    assert [a.status for a in asked] == [200] * 10
    assert max(a.took for a in asked) <= 3 * took(TEXTS, 20)
