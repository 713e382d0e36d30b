"""One request in the queue, and its texts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from preprocess.passage import Passage
from preprocess.rows import Row
from preprocess.tokens import Encoded
from preprocess.waiting import Place, WaitingTexts


@dataclass(eq=False)
class Ticket:
    """A row for each text, and who waits for all of them until `deadline` (time.monotonic's)."""

    rows: list[Row | None]
    future: asyncio.Future[None]
    passage: Passage
    deadline: float
    missing: int
    _places: list[Place] = field(default_factory=list)

    @classmethod
    def of(cls, texts: int, passage: Passage, deadline: float) -> Ticket:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return cls([None] * texts, future, passage, deadline, texts)

    @property
    def done(self) -> bool:
        return self.future.done()

    def stand_in(self, queue: WaitingTexts[Text], encoded: Sequence[Encoded]) -> None:
        texts = [Text(self, position, text) for position, text in enumerate(encoded)]
        self._places = queue.push(texts)

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
            ticket.passage.answered = time.monotonic()
            ticket.future.set_result(None)
