"""Long texts are tokenized off the event loop, and long answers made, in two threads each.

Who waits for them may leave.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from preprocess.passage import Asker
from preprocess.queue.admission import SURE, takes_too_long
from preprocess.queue.pace import Pace, Running
from transformer_serving.contract.errors import too_late
from transformer_serving.contract.worker.request_context import why_nobody_waits

# Above this many characters, as Request counts them, the loop would stand still for about a
# millisecond.
OFF_LOOP_CHARACTERS = 4096
THREADS = 2
# An answer's piece takes as long as tokenizing so many characters, or longer.
_CHARACTERS_A_PIECE = 16
# An answer of no more is made at once, without a look at threads.
FEW_PIECES = OFF_LOOP_CHARACTERS // _CHARACTERS_A_PIECE

Result = TypeVar("Result")


@dataclass(eq=False)
class Threads:
    """What is done in threads and what waits for it, counted in characters to be tokenized."""

    name: str = "tokenize"
    pace: Pace = field(default_factory=Pace)

    def __post_init__(self) -> None:
        self._pool = self._made_pool()

    def _made_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS, thread_name_prefix=self.name)

    async def run(
        self,
        characters: int,
        work: Callable[[], Result],
        asker: Asker,
        deadline: float,
        max_wait_s: float | None,
    ) -> Result:
        """`work()`, in a thread when its texts are long. Where `max_wait_s` is None it is let in
        whatever waits.

        `deadline` is on time.monotonic's clock. Raises ServingError `deadline` when it passes,
        `left` when the caller does, before the thread is done, `overloaded` where what waits
        takes too long. Work that has not begun by then never does; what comes behind its deadline
        is not begun either, where `max_wait_s` is given.
        """
        if max_wait_s is not None and not asker.golden and deadline <= time.monotonic():
            # The host may have held it for so long. What is computed already is not thrown away.
            raise too_late()
        if characters <= OFF_LOOP_CHARACTERS:
            return work()
        if max_wait_s is not None:
            self._check_wait(asker, deadline, max_wait_s)
        job = self._begin(work)
        working = asyncio.wrap_future(job)
        awaited: set[asyncio.Future[Any]] = {working}
        if asker.caller is not None:
            awaited.add(asker.caller)
        running = self.pace.begin(characters, time.monotonic())
        try:
            await asyncio.wait(
                awaited,
                timeout=max(0.0, deadline - time.monotonic()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if working.done():
                return working.result()
            caller = asker.caller
            if caller is None or not caller.done():
                raise too_late()
            raise why_nobody_waits(caller)
        finally:
            self._end(running, job, working)

    def _begin(self, work: Callable[[], Result]) -> Future[Result]:
        """Raises RuntimeError where the machine lets this process have no more threads."""
        job: Future[Result] = Future()
        try:
            self._pool.submit(_do, job, work)
        except RuntimeError:
            self._replace_pool()
            # It is in the old one's queue all the same: there it must not be begun for nobody.
            if job.cancel():
                raise
        return job

    def _replace_pool(self) -> None:
        """By one with an empty queue; the old one ends with what it has begun.

        The old one would keep the texts of what no thread was started for until it has one. Python
        3.11's then takes each of them for a thread that idles, and starts none for as many.
        """
        self._pool.shutdown(wait=False)
        self._pool = self._made_pool()

    def _check_wait(self, asker: Asker, deadline: float, max_wait_s: float) -> None:
        """A golden request is never refused: a health check must not turn callers away."""
        pace = self.pace
        if asker.golden or pace.calls < THREADS:
            return
        now = time.monotonic()
        allowed = SURE * (deadline - now) if asker.own_deadline else max_wait_s
        wait = pace.wait_s(0, now)
        if wait > allowed:
            raise takes_too_long(allowed, wait)

    def _end(self, running: Running, job: Future[Result], working: asyncio.Future[Result]) -> None:
        if working.done():
            if not working.cancelled():
                # Looked at: where `run` itself is cancelled nobody else does, and asyncio says so.
                working.exception()
            self.pace.end(running, time.monotonic(), answered=not working.cancelled())
            return
        if job.cancel():
            self.pace.drop(running)
        else:
            # Nobody waits for it, but its thread is taken until it is done: others wait as long.
            job.add_done_callback(partial(self._over, asyncio.get_running_loop(), running))
        working.cancel()

    def _over(self, loop: asyncio.AbstractEventLoop, running: Running, job: Future[Result]) -> None:
        """In the thread: given up work is done."""
        answered = job.exception() is None
        # A loop that is closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(
                lambda: self.pace.end(running, time.monotonic(), answered=answered)
            )


def _do(job: Future[Result], work: Callable[[], Result]) -> None:
    """In the thread."""
    if not job.set_running_or_notify_cancel():
        return
    try:
        job.set_result(work())
    except BaseException as error:
        job.set_exception(error)
        # It has the error, which has this frame: only the garbage collector would free either.
        del job


# The worker's own, as cores are. An answer that is computed does not wait for texts that are not.
threads = Threads()
renderers = Threads("render")


async def render(pieces: int, make: Callable[[], Result], asker: Asker, deadline: float) -> Result:
    """`make()`, an answer of so many pieces, beside the loop where it takes long. Raises as
    Threads.run does.

    Who was let in and computed is not refused for who else waits.
    """
    return await renderers.run(_CHARACTERS_A_PIECE * pieces, make, asker, deadline, None)
