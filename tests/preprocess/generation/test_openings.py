"""Streams that open while whoever wanted them leaves or fails: none stays open, no error unseen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from preprocess.generation.openings import all_open, close_each, in_time, unless_left
from preprocess.triton.replies import Replies
from transformer_serving.contract.errors import ServingError

REFUSED = ServingError("unavailable", "played")
TURNS = range(7)
Begin = Callable[[], Coroutine[Any, Any, Replies]]


class Streams:
    """Counts those that are open; `complaints` are what asyncio says of errors nobody looked at."""

    def __init__(self) -> None:
        self.open = 0
        self.complaints: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, told: self.complaints.append(told["message"])
        )

    async def opens(self, turns: int) -> Replies:
        await passing(turns)
        self.open += 1
        replies = Replies(nothing(), lambda: None)
        replies.when_closed(self._closed)
        return replies

    def _closed(self) -> None:
        self.open -= 1

    async def settled(self) -> tuple[int, list[str]]:
        await passing(20)
        gc.collect()
        await passing(2)
        return self.open, self.complaints


async def nothing() -> AsyncIterator[Any]:
    return
    yield


async def passing(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def fails(turns: int) -> Replies:
    await passing(turns)
    raise REFUSED


async def breaks(turns: int) -> Replies:
    await passing(turns)
    raise RuntimeError("played")


async def is_slow_to_leave() -> Replies:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await passing(2)
        raise
    raise AssertionError


async def leaves(caller: asyncio.Future[None], turns: int) -> None:
    await passing(turns)
    caller.set_result(None)


async def test_all_are_open_in_their_order() -> None:
    streams = Streams()
    replies = await all_open([streams.opens(2), streams.opens(1), streams.opens(3)])
    assert (len(replies), streams.open) == (3, 3)
    close_each(replies)
    assert await streams.settled() == (0, [])


async def test_where_one_fails_none_stays_open() -> None:
    streams = Streams()
    with pytest.raises(ServingError, match="played"):
        await all_open([streams.opens(1), fails(3), fails(3), streams.opens(9)])
    assert await streams.settled() == (0, [])


@pytest.mark.parametrize("turns", TURNS)
async def test_who_leaves_while_a_failure_is_cleared_up_leaves_none_open(turns: int) -> None:
    streams = Streams()
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    leaving = asyncio.ensure_future(leaves(caller, 3 + turns))
    opening = all_open([streams.opens(1), fails(3), is_slow_to_leave()])
    with pytest.raises(ServingError):
        await unless_left(opening, caller, close_each)
    await leaving
    assert await streams.settled() == (0, [])


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("count", [1, 2])
async def test_what_opens_as_its_caller_leaves_is_closed(count: int, turns: int) -> None:
    streams = Streams()
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    leaving = asyncio.ensure_future(leaves(caller, turns))
    opening = all_open([streams.opens(3) for _ in range(count)])
    with contextlib.suppress(ServingError):
        close_each(await unless_left(opening, caller, close_each))
    await leaving
    assert await streams.settled() == (0, [])


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("end", ["opens", "fails", "breaks"])
async def test_what_ends_as_its_task_is_cancelled_is_closed(end: str, turns: int) -> None:
    """As a lane is, where another one fails in the turn in which its next stream opens."""
    streams = Streams()
    caller: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    begin: Begin = partial({"opens": streams.opens, "fails": fails, "breaks": breaks}[end], 3)
    taken: list[Replies] = []

    async def lane() -> None:
        made = await unless_left(all_open([begin()]), caller, close_each)
        taken.extend(made)

    running = asyncio.ensure_future(lane())
    await passing(turns)
    was_done = running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled() or was_done
    close_each(taken)
    assert await streams.settled() == (0, [])


async def test_time_that_is_left_is_asked_for_again() -> None:
    """Whatever it was said to be before, and what opens after it is closed."""
    streams, said = Streams(), [1e-9, 1e-9, 60.0]
    replies = await in_time(streams.opens(9), lambda: said.pop(0), Replies.close)
    assert (streams.open, said) == (1, [])
    replies.close()
    said = [1e-9, 1e-9, 0.0]
    with pytest.raises(TimeoutError):
        await in_time(is_slow_to_leave(), lambda: said.pop(0), Replies.close)
    assert (await streams.settled(), said) == ((0, []), [])


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("end", ["opens", "fails", "breaks"])
async def test_what_ends_in_time_as_nobody_waits_any_more_is_closed(end: str, turns: int) -> None:
    streams = Streams()
    begin: Begin = partial({"opens": streams.opens, "fails": fails, "breaks": breaks}[end], 3)

    async def lane() -> Replies:
        return await in_time(begin(), lambda: 60.0, Replies.close)

    waiting = asyncio.ensure_future(lane())
    await passing(turns)
    if not waiting.done():
        waiting.cancel()
    [ended] = await asyncio.gather(waiting, return_exceptions=True)
    if isinstance(ended, Replies):
        ended.close()
    assert await streams.settled() == (0, [])
