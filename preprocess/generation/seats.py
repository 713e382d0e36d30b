"""How many sequences run in this worker, whichever endpoint's and bundle's they are.

Tested by tests/preprocess/generation/test_text_generation.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from preprocess.generation.figures import TextFigures
from preprocess.triton.replies import Replies
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.process_wide import process_wide

_TAKEN = "taken"


class Seats:
    """A count that every version of this code in the process shares."""

    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    @property
    def taken(self) -> int:
        return self._counts.get(_TAKEN, 0)

    def share_of(self, sequences: int, most: int, mine: int = 0) -> int:
        """How many of them may run at once, of which `mine` do: half of what others have not, so
        that whoever comes while they do finds a seat. At least one, which `take` may refuse.
        """
        return max(1, min(sequences, (most - self.taken + mine + 1) // 2))

    def take(self, sequences: int, most: int, figures: TextFigures) -> Taken:
        """Count them, and among the figures of their endpoint.

        Raises ServingError: `too_large` for more than may run at all, `overloaded`.
        """
        if sequences > most:
            raise ServingError(
                "too_large",
                "the request asks for more sequences than may run at the same time; "
                "TRANSFORMER_SERVING_MAX_STREAMS sets how many",
                limit=most, got=sequences,
            )  # fmt: skip
        if self.taken + sequences > most:
            raise ServingError(
                "overloaded",
                "too many sequences run; TRANSFORMER_SERVING_MAX_STREAMS sets how many may",
                limit=most, got=self.taken + sequences,
            )  # fmt: skip
        self._counts[_TAKEN] = self.taken + sequences
        figures.seated(sequences)
        return Taken(self, figures)

    def give_back(self, sequences: int) -> None:
        self._counts[_TAKEN] = self.taken - sequences


@dataclass(frozen=True, slots=True)
class Taken:
    """The seats of one request."""

    room: Seats
    figures: TextFigures

    def take_another(self, most: int) -> None:
        """Raises ServingError `overloaded`, where somebody else has what was given back."""
        self.room.take(1, most, self.figures)

    def give_back(self, sequences: int) -> None:
        self.room.give_back(sequences)
        self.figures.left(sequences)

    def with_seat(self, replies: Replies) -> Replies:
        """The replies, which give their seat back when they are closed."""
        replies.when_closed(lambda: self.give_back(1))
        return replies


seats = Seats(process_wide("text_seats", dict))
