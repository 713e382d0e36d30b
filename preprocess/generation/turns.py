"""The sequences of one request: those that have no seat at first begin where one of it has ended.

Tested by tests/preprocess/generation/test_turns.py and
tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence as Rows
from typing import Any

from preprocess.generation.events import close_all
from preprocess.generation.sequence import Sequence, cut_by
from transformer_serving.contract.panics import ENDS

# One that is yet to be opened.
Later = Callable[[], Coroutine[Any, Any, Sequence]]


class Turns:
    """`sequences` are those that run; after `read` all of them, in the order asked for.

    What `later` gives is opened in its order, each in the moment in which another one has ended, so
    that the seat goes from one to the next.
    """

    def __init__(self, running: Rows[Sequence], later: Iterable[Later] = ()) -> None:
        self._made = dict(enumerate(running))
        self._waiting = enumerate(later, len(running))

    @property
    def sequences(self) -> list[Sequence]:
        return [self._made[at] for at in sorted(self._made)]

    async def read(self) -> None:
        """Every sequence to its end. Raises the ServingError of the first that fails."""
        lanes = [asyncio.ensure_future(self._lane(one)) for one in self.sequences]
        try:
            await asyncio.gather(*lanes)
        except ENDS:
            raise
        except BaseException as error:
            # Where one fails, the others are cut by the same fault, and before their tasks are.
            close_all(self.sequences, cut_by(error))
            raise
        finally:
            for lane in lanes:
                lane.cancel()
            close_all(self.sequences)
            # What was being opened gives its seat back.
            await asyncio.gather(*lanes, return_exceptions=True)

    async def _lane(self, sequence: Sequence) -> None:
        await sequence.whole()
        # Without a pause: at the first one another request could have taken the seat.
        for at, opened in self._waiting:
            self._made[at] = sequence = await opened()
            await sequence.whole()
