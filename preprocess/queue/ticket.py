"""One request in the queue, and its texts.

Tested by tests/preprocess/test_coalesce.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from preprocess.queue.waiting import Place, WaitingTexts
from preprocess.rows import Row
from preprocess.tokens import Encoded


class Stay(NamedTuple):
    """What became of a request in the queue: all its rows, in order, or an error.

    When it came, its first text left for the engine, and its last one was answered: times are
    time.monotonic's, 0.0 where it did not come so far. `tokens` counts special ones too.
    """

    tokens: int
    came: float
    left: float
    answered: float
    rows: Sequence[Row]
    error: Exception | None

    def result(self) -> Sequence[Row]:
        """The rows. Raises the error."""
        if self.error is not None:
            raise self.error
        return self.rows


@dataclass(eq=False)
class Ticket:
    """A row for each encoded text, and who waits for all of them until `deadline` (on
    time.monotonic's clock). `texts` is how many the caller sent: of one there may be many rows.
    """

    rows: list[Row | None]
    future: asyncio.Future[None]
    texts: int
    golden: bool
    deadline: float
    missing: int
    tokens: int
    came: float
    left: float = 0.0
    answered: float = 0.0
    _places: list[Place] = field(default_factory=list)

    @classmethod
    def of(cls, encoded: Sequence[Encoded], texts: int, deadline: float, *, golden: bool) -> Ticket:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rows, tokens = len(encoded), sum(len(text.ids) for text in encoded)
        return cls([None] * rows, future, texts, golden, deadline, rows, tokens, time.monotonic())

    def stay(self, error: Exception | None = None) -> Stay:
        rows = [] if error else [row for row in self.rows if row is not None]
        return Stay(self.tokens, self.came, self.left, self.answered, rows, error)

    @property
    def done(self) -> bool:
        return self.future.done()

    def stand_in(
        self, queue: WaitingTexts[Text], encoded: Sequence[Encoded], *, first: bool
    ) -> None:
        texts = [Text(self, position, text) for position, text in enumerate(encoded)]
        self._places = queue.push(texts, first=first)

    def fail(self, queue: WaitingTexts[Text], error: Exception) -> bool:
        """Tell who waits, and take the texts out of the queue; False where it is over already."""
        if self.future.done():
            return False
        self.future.set_exception(error)
        self.give_up(queue)
        return True

    def give_up(self, queue: WaitingTexts[Text]) -> None:
        """Nobody waits for it any more."""
        self.future.cancel()
        queue.remove(self._places)


@dataclass(eq=False)
class Text:
    """One text of a ticket."""

    ticket: Ticket
    position: int
    encoded: Encoded

    @property
    def length(self) -> int:
        return len(self.encoded.ids)

    @property
    def done(self) -> bool:
        return self.ticket.done

    def answer(self, row: Row) -> None:
        ticket = self.ticket
        ticket.rows[self.position] = row
        ticket.missing -= 1
        if not ticket.missing and not ticket.future.done():
            ticket.answered = time.monotonic()
            ticket.future.set_result(None)
