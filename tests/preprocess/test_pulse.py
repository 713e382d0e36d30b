"""A loop that stands still beside a call that runs, in virtual time: what of it is silence."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from preprocess.queue.pace import Pace
from preprocess.queue.pulse import EVERY_S, LATE_S, Pulse
from tests.preprocess import virtual_time


def silence(pulse: Pulse, pace: Pace) -> float:
    """As who comes now is told of it; of an engine that has answered nothing it is all there is."""
    now = time.monotonic()
    pulse.feel(pace, now)
    return pace.wait_s(0, now)


def beside_a_call(play: Any) -> Any:
    async def beside() -> Any:
        pulse, pace = Pulse(), Pace()
        now = time.monotonic()
        running = pace.begin(10, now)
        pulse.keep(pace, now)
        return await play(pulse, pace, running)

    return virtual_time.run(beside())


def test_all_of_it_is_while_the_loop_goes_on() -> None:
    async def play(pulse: Pulse, pace: Pace, running: Any) -> float:
        await asyncio.sleep(7.0)
        return silence(pulse, pace)

    assert beside_a_call(play) == pytest.approx(7.0)


@pytest.mark.parametrize("stall_s", [0.9, 60.0])
@pytest.mark.parametrize("turns", [0, 1, 5], ids=["before a beat", "in its turn", "after it"])
def test_a_stall_is_none_whoever_asks_first(turns: int, stall_s: float) -> None:
    async def play(pulse: Pulse, pace: Pace, running: Any) -> float:
        await asyncio.sleep(0.55)
        virtual_time.stand_still(stall_s)
        for _ in range(turns):
            await asyncio.sleep(0)
        found = silence(pulse, pace)
        # To who asks next it is no longer.
        assert silence(pulse, pace) == pytest.approx(found)
        return found

    assert 0.55 <= beside_a_call(play) <= 0.55 + LATE_S


def test_what_follows_a_stall_is_silence_again() -> None:
    """Also where the loop heard of an answer before it heard of the stall."""

    async def play(pulse: Pulse, pace: Pace, running: Any) -> float:
        await asyncio.sleep(0.55)
        virtual_time.stand_still(60.0)
        pace.end(running, time.monotonic(), answered=True)
        pace.begin(10, time.monotonic())
        await asyncio.sleep(3.0)
        return silence(pulse, pace)

    assert beside_a_call(play) == pytest.approx(3.0)


def test_it_beats_no_longer_than_a_call_runs_and_once_for_all_of_them() -> None:
    async def play(pulse: Pulse, pace: Pace, running: Any) -> list[int]:
        timers: Any = asyncio.get_running_loop()
        counts = []
        others = [pace.begin(10, time.monotonic()) for _ in range(3)]
        for _ in others:
            pulse.keep(pace, time.monotonic())
        counts.append(len(timers._scheduled))
        for call in (running, *others):
            pace.end(call, time.monotonic(), answered=True)
        await asyncio.sleep(2 * EVERY_S)
        counts.append(len(timers._scheduled))
        return counts

    assert beside_a_call(play) == [1, 0]
