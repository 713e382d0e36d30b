"""Work that a caller may leave, and streams that are opened together: what nobody takes is closed.

Whatever is cancelled may have ended in the same turn of the event loop. What it has opened then is
nobody's, so a callback of its task closes it, which no further cancellation can skip.

Tested by tests/preprocess/generation/test_openings.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence as Rows
from functools import partial
from typing import Any, TypeVar

from preprocess.triton.replies import Replies
from transformer_serving.contract.worker.request_context import why_nobody_waits

Result = TypeVar("Result")


async def all_open(opening: Rows[Coroutine[Any, Any, Replies]]) -> list[Replies]:
    """Every one of them; where one fails none stays open."""
    if len(opening) == 1:
        return [await opening[0]]
    tasks = [asyncio.ensure_future(one) for one in opening]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            _give_up(task, Replies.close)
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def unless_left(
    work: Coroutine[Any, Any, Result],
    caller: asyncio.Future[None] | None,
    unused: Callable[[Result], object] = lambda result: None,
) -> Result:
    """The work's result. Raises ServingError `left` when the caller leaves before, `unavailable`
    when the worker does; `unused` is given what the work has made all the same.
    """
    if caller is None:
        return await work
    task = asyncio.ensure_future(work)
    try:
        awaited: set[asyncio.Future[Any]] = {task, caller}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise why_nobody_waits(caller)
    except BaseException:
        _give_up(task, unused)
        # Not the task itself: what it raises would take the place of a cancellation.
        await asyncio.wait({task})
        raise
    return task.result()


async def in_time(
    work: Coroutine[Any, Any, Result],
    left_s: Callable[[], float],
    unused: Callable[[Result], object],
) -> Result:
    """The work's result. Raises TimeoutError once `left_s` says that no seconds are left, which it
    is asked again when those it said before are over; `unused` as above.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            if (left := left_s()) <= 0:
                raise TimeoutError
            await asyncio.wait({task}, timeout=left)
    except BaseException:
        _give_up(task, unused)
        await asyncio.wait({task})
        raise
    return task.result()


def close_each(replies: Rows[Replies]) -> None:
    for one in replies:
        one.close()


def _give_up(task: asyncio.Future[Result], unused: Callable[[Result], object]) -> None:
    task.add_done_callback(partial(_given_up, unused))
    task.cancel()


def _given_up(unused: Callable[[Result], object], task: asyncio.Future[Result]) -> None:
    # An error is looked at, or asyncio writes of it: whoever gave up has told of another one.
    if not task.cancelled() and task.exception() is None:
        unused(task.result())
