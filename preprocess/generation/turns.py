"""The sequences of one request that is no stream: a few begin at a time, as others go on.

An engine takes what it is asked in the order of its coming, so whoever came beside a list that
stood there as a whole would wait for all of it. So no more wait for their first token than half as
many as have it and run, and before the first end, when an idle engine is filled, than as many; or,
where answers are short, as many as have it about as soon as one alone has.

Tested by tests/preprocess/generation/test_turns.py and
tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence as Rows
from itertools import chain
from typing import Any

from preprocess.generation.events import close_all
from preprocess.generation.opening_window import OpeningWindow
from preprocess.generation.sequence import Sequence, cut_by
from preprocess.triton.errors import FullError
from transformer_serving.contract.panics import ENDS

# One that is yet to be opened.
Later = Callable[[], Coroutine[Any, Any, Sequence]]
# So many begin behind the first one's first token.
FIRST = 4


def _all(mine: int) -> int:
    return mine + 1


class Turns:
    """`sequences` are those that run; after `read` all of them, in the order asked for.

    What `later` gives is opened in its order. `share` says how many may be open, of how many are.
    """

    def __init__(
        self,
        running: Rows[Sequence],
        later: Iterable[Later] = (),
        share: Callable[[int], int] = _all,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._made = dict(enumerate(running))
        self._later: Iterator[tuple[int, Later]] = enumerate(later, len(running))
        self._some_left = True
        self._share = share
        self._window = OpeningWindow(clock)
        self._opening, self._running, self._ended = 0, len(running), 0
        # How many had ended when the engine last had no room for another.
        self._full_at = -1
        self._fault: BaseException | None = None

    @property
    def sequences(self) -> list[Sequence]:
        return [self._made[at] for at in sorted(self._made)]

    async def read(self) -> None:
        """Every sequence to its end. Raises the ServingError of the first that fails."""
        try:
            async with asyncio.TaskGroup() as self._lanes:
                for one in self.sequences:
                    self._lanes.create_task(self._lane(one))
        except ENDS:
            raise
        except BaseException as group:
            # Of the group the first alone: the others were cut by it.
            raise self._fault or group from None
        finally:
            close_all(self.sequences)

    async def _lane(self, sequence: Sequence | None = None) -> None:
        """One sequence after the other, for as long as there is room for one more."""
        try:
            while sequence is not None or (sequence := await self._next()) is not None:
                self._widen()
                await sequence.whole()
                # Without a pause: at the first one another request could have taken the seat.
                sequence = None
                self._running -= 1
                self._ended += 1
        except ENDS:
            raise
        except BaseException as error:
            self._fault = self._fault or error
            # Where one fails, the others are cut by the same fault, and before their tasks are.
            close_all(self.sequences, cut_by(error))
            raise

    async def _next(self) -> Sequence | None:
        """The next in order with its first token; None where none is left, or has no room now."""
        while self._room > 0:
            later = next(self._later, None)
            if later is None:
                self._some_left = False
                return None
            at, opened = later
            ended, asked_at = self._ended, self._window.clock()
            self._opening += 1
            try:
                self._made[at] = sequence = await opened()
            except FullError:
                self._opening -= 1
                if self._opening + self._running == 0 and ended == self._ended:
                    raise
                # One of this request that ends makes room at the engine.
                self._full_at, self._later = ended, chain([later], self._later)
                self._some_left = True
                continue
            self._window.came(asked_at)
            self._opening -= 1
            self._running += 1
            return sequence
        return None

    @property
    def _room(self) -> int:
        """How many more may begin now; one where none is open, whose seat and place are free."""
        mine = self._opening + self._running
        if mine == 0:
            return 1
        if self._full_at == self._ended:
            return 0
        # Where the engine has all places taken, one that waits begins when another has ended.
        part = self._running // 2 if self._ended else self._running
        may_wait = max(FIRST - self._ended - self._running, part, self._window.size)
        return min(may_wait - self._opening, self._share(mine) - mine)

    def _widen(self) -> None:
        """Lanes for what may begin now that one more has its first token."""
        for _ in range(self._room if self._some_left else 0):
            self._lanes.create_task(self._lane())
