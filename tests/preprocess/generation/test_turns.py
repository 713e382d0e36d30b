"""Sequences in turns, in any order of ends: played ones, that end when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, strategies

from preprocess.generation.sequence import Sequence
from preprocess.generation.turns import Turns
from transformer_serving.contract.errors import ServingError


class Room:
    """As many seats as there are; a sequence that ends gives its own back."""

    def __init__(self, seats: int) -> None:
        self.free = seats
        self.running: list[Played] = []

    def opened(self, number: int) -> Played:
        assert self.free > 0, "another one has the seat"
        self.free -= 1
        return Played(self, number)


class Played:
    def __init__(self, room: Room, number: int) -> None:
        self.room, self.number, self.is_open = room, number, True
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reasons: list[str] = []
        room.running.append(self)

    async def whole(self) -> None:
        try:
            await self.end
        finally:
            self.close()

    def close(self, reason: str = "") -> None:
        if self.is_open:
            self.is_open = False
            self.reasons.append(reason)
            self.room.free += 1
            self.room.running.remove(self)


async def open_one(room: Room, number: int, made: Callable[[], object]) -> Sequence:
    # The seat is taken before anything is awaited.
    one = room.opened(number)
    try:
        await asyncio.sleep(0)
        made()
    except BaseException:
        one.close()
        raise
    return cast("Sequence", one)


def turns(room: Room, count: int, made: Callable[[], object] = lambda: None) -> Turns:
    running = [cast("Sequence", room.opened(at)) for at in range(min(room.free, count))]
    return Turns(running, [partial(open_one, room, at, made) for at in range(len(running), count)])


def numbers(of: Turns) -> list[int]:
    return [cast("Any", one).number for one in of.sequences]


@given(
    seats=strategies.integers(1, 5),
    count=strategies.integers(1, 20),
    picks=strategies.lists(strategies.integers(0, 100), min_size=20, max_size=20),
)
def test_all_are_read_in_their_order_whichever_ends_first(
    seats: int, count: int, picks: list[int]
) -> None:
    async def run() -> None:
        room = Room(seats)
        asked = turns(room, count)
        reading = asyncio.ensure_future(asked.read())
        for pick in picks[:count]:
            for _ in range(4):
                await asyncio.sleep(0)
            room.running[pick % len(room.running)].end.set_result(None)
        await reading
        assert numbers(asked) == list(range(count))
        assert (room.free, room.running) == (seats, [])

    asyncio.run(run())


async def test_the_first_fault_cuts_the_others_and_opens_no_more() -> None:
    room, opened = Room(2), list[None]()
    asked = turns(room, 5, partial(opened.append, None))
    reading = asyncio.ensure_future(asked.read())
    await asyncio.sleep(0)
    first, second = room.running
    first.end.set_exception(ServingError("engine_failed", "played"))
    with pytest.raises(ServingError, match="played"):
        await reading
    assert second.reasons == ["engine_failed"]
    assert (opened, room.free, numbers(asked)) == ([], 2, [0, 1])


async def test_one_that_cannot_be_opened_cuts_the_others() -> None:
    def refuse() -> None:
        raise ServingError("overloaded", "played")

    room = Room(2)
    asked = turns(room, 3, refuse)
    reading = asyncio.ensure_future(asked.read())
    await asyncio.sleep(0)
    first, second = room.running
    first.end.set_result(None)
    with pytest.raises(ServingError, match="played"):
        await reading
    assert second.reasons == ["overloaded"]


async def test_who_is_cancelled_leaves_none_open() -> None:
    room = Room(2)
    asked = turns(room, 4)
    reading = asyncio.ensure_future(asked.read())
    await asyncio.sleep(0)
    room.running[0].end.set_result(None)
    await asyncio.sleep(0)
    assert len(room.running) == 2
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (room.running, room.free) == ([], 2)
