"""Sequences in turns, in any order of ends: played ones, that end when they are told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, strategies

from preprocess.generation.sequence import Sequence
from preprocess.generation.turns import FIRST, Turns
from preprocess.triton.errors import FullError
from transformer_serving.contract.errors import ServingError


class Room:
    """As many seats as there are; a sequence that ends gives its own back. The engine has so many
    `places`; where it is `gated`, each waits there until it is told that it has its first token.
    `now` is what its clock shows.
    """

    def __init__(self, seats: int, places: int = 1000, *, gated: bool = False) -> None:
        self.free, self.places, self.gated = seats, places, gated
        self.running: list[Played] = []
        self.refused = self.ended = 0
        self.now = 1.0

    @property
    def waiting(self) -> list[Played]:
        return [one for one in self.running if not one.first.done()]

    @property
    def begun(self) -> list[Played]:
        return [one for one in self.running if one.first.done()]

    def share(self, mine: int) -> int:
        return max(1, mine + self.free)

    def check(self) -> None:
        """Called with each one that waits more."""

    def opened(self, number: int) -> Played:
        assert self.free > 0, "another one has the seat"
        self.free -= 1
        return Played(self, number)


class SlowRoom(Room):
    """One in which all wait for long."""

    def check(self) -> None:
        begun = len(self.begun)
        assert len(self.waiting) <= max(
            FIRST - self.ended - begun, begun // 2 if self.ended else begun, 1
        )


class Played:
    def __init__(self, room: Room, number: int) -> None:
        self.room, self.number, self.is_open = room, number, True
        loop = asyncio.get_running_loop()
        self.first: asyncio.Future[None] = loop.create_future()
        self.end: asyncio.Future[None] = loop.create_future()
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
            self.room.ended += self.end.done()


async def open_one(room: Room, number: int, made: Callable[[], object]) -> Sequence:
    # The seat is taken before anything is awaited.
    one = room.opened(number)
    try:
        await asyncio.sleep(0)
        if len(room.running) > room.places:
            room.refused += 1
            raise FullError("played")
        if room.gated:
            room.check()
            await one.first
        else:
            one.first.set_result(None)
        made()
    except BaseException:
        one.close()
        raise
    return cast("Sequence", one)


def turns(
    room: Room, count: int, made: Callable[[], object] = lambda: None, running: int = 1000
) -> Turns:
    begun = [room.opened(at) for at in range(min(room.free, count, running))]
    for one in begun:
        one.first.set_result(None)
    later = [partial(open_one, room, at, made) for at in range(len(begun), count)]
    running_now = [cast("Sequence", one) for one in begun]
    return Turns(running_now, later, room.share, clock=lambda: room.now)


async def passing() -> None:
    """All that goes on without another word."""
    for _ in range(8):
        await asyncio.sleep(0)


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
            await passing()
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


@given(
    seats=strategies.integers(1, 40),
    places=strategies.integers(1, 40),
    count=strategies.integers(1, 40),
    picks=strategies.lists(strategies.integers(0, 100), min_size=20),
    leaves=strategies.booleans(),
)
def test_no_more_wait_than_half_of_those_that_run(
    seats: int, places: int, count: int, picks: list[int], leaves: bool
) -> None:
    """But for the first few, whichever has its first token or its end next, and however much room
    the engine has, where all but the first token are late. Wherever the caller leaves, nothing is
    held."""

    async def run() -> None:
        room = SlowRoom(seats, places, gated=True)
        asked = turns(room, count, running=1)
        reading = asyncio.ensure_future(asked.read())
        at = 0
        while not (leaves and at == len(picks)):
            await passing()
            if reading.done():
                break
            # Whoever waited over one more of these waited longer than all before.
            room.now *= 4
            # Something runs or waits, always.
            one = room.running[picks[at % len(picks)] % len(room.running)]
            (one.end if one.first.done() else one.first).set_result(None)
            at += 1
        if leaves and not reading.done():
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        else:
            await reading
            assert numbers(asked) == list(range(count))
        assert (room.free, room.running) == (seats, [])

    asyncio.run(run())


async def test_an_engine_is_filled_by_as_many_as_run_already() -> None:
    room = Room(seats=99, gated=True)
    asked = turns(room, 80, running=1)
    reading = asyncio.ensure_future(asked.read())
    waiting = []
    while len(room.running) < 80:
        await passing()
        waiting.append(len(room.waiting))
        for one in room.waiting:
            one.first.set_result(None)
    assert waiting == [FIRST - 1, 4, 8, 16, 32, 16]
    reading.cancel()
    await asyncio.wait({reading})
    assert (room.free, room.running) == (99, [])


async def steps_of(count: int, tokens: int, places: int) -> int:
    """Of an engine whose step gives each of its `places` a token, until a list of answers of so
    many tokens is done."""
    room = Room(seats=count, gated=True)
    reading = asyncio.ensure_future(turns(room, count, running=1).read())
    left: dict[Played, int] = {}
    steps = 0
    while not reading.done():
        room.now, steps = room.now + 1, steps + 1
        for one in room.running[:places]:
            left[one] = left.get(one, tokens) - 1
            if not one.first.done():
                one.first.set_result(None)
            if left[one] <= 0:
                one.end.set_result(None)
        await passing()
    await reading
    return steps


@pytest.mark.parametrize("tokens", [1, 2, 4, 16])
async def test_short_answers_fill_an_engine_too(tokens: int) -> None:
    """Few of them run at any time: each ends soon after its first token."""
    assert await steps_of(256, tokens, places=64) < 2 * 256 // 64 * (tokens + 1) + 10
    assert await steps_of(64, tokens, places=4) < 2 * 64 // 4 * (tokens + 1) + 10


async def test_what_the_engine_has_no_room_for_waits_for_one_of_its_own_to_end() -> None:
    room = Room(seats=9, places=2)
    asked = turns(room, 4, running=1)
    reading = asyncio.ensure_future(asked.read())
    await passing()
    # Of the first few, asked together, and not again for as long as none has ended.
    assert (len(room.running), room.refused) == (2, 2)
    for left in (2, 2, 1, 0):
        room.running[0].end.set_result(None)
        await passing()
        assert len(room.running) == left
    await reading
    assert (numbers(asked), room.free) == ([0, 1, 2, 3], 9)


async def test_an_engine_that_has_no_room_when_none_of_the_list_runs_refuses_it() -> None:
    room = Room(seats=9)
    asked = turns(room, 4, running=1)
    reading = asyncio.ensure_future(asked.read())
    room.places = 0
    await passing()
    assert not reading.done()
    room.running[0].end.set_result(None)
    with pytest.raises(FullError, match="played"):
        await reading
    assert (room.free, room.running) == (9, [])


async def test_seats_that_are_free_later_are_taken_and_given_back_when_others_need_them() -> None:
    room = Room(seats=1)
    asked = turns(room, 30)
    reading = asyncio.ensure_future(asked.read())
    for free in (2, 3):
        room.free += 1
        room.running[0].end.set_result(None)
        await passing()
        assert len(room.running) == free
    room.share = lambda mine: 1  # type: ignore[method-assign]
    asked._share = room.share
    for left in (2, 1, 1):
        room.running[0].end.set_result(None)
        await passing()
        assert len(room.running) == left
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert (room.free, room.running) == (3, [])
