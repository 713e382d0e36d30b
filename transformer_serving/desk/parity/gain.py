"""Whether a precision that was allowed is the faster one on this processor, by calls in turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from transformer_serving.desk.bench.bounds import Spread, ratios, spread
from transformer_serving.desk.parity.latency import (
    Contender,
    RoundReport,
    Rounds,
    Shape,
    facts,
    rounds_by_shape,
)

if TYPE_CHECKING:
    from transformer_serving.desk.builders.calibration import Feeds

# Texts and tokens of one call: a short text, a long one, and a call as many short texts fill it.
SHAPES = ((1, 16), (1, 128), (32, 32))
ROUNDS = 15
_ROUND_MS = 40
# Its error is another one with every text, so what it saves must be worth that.
LEAST = 1.1


@dataclass(frozen=True)
class ShapeGain:
    """How many times as fast calls of one shape are, with the bounds of the median."""

    texts: int
    tokens: int
    times: Spread

    def __str__(self) -> str:
        found = self.times
        bounds = f"{found.lower:.2f} to {found.upper:.2f}"
        return f"{self.texts}x{self.tokens} {found.median:.2f} times ({bounds})"


@dataclass(frozen=True)
class Gain:
    """`precision` against `instead_of`, at every shape, on the processor of `measured`."""

    precision: str
    instead_of: str
    least: float
    shapes: tuple[ShapeGain, ...]
    measured: Mapping[str, str]

    @property
    def is_taken(self) -> bool:
        """As everywhere, the unsure side of a bound counts."""
        return all(shape.times.lower >= self.least for shape in self.shapes)

    def __str__(self) -> str:
        figures = ", ".join(map(str, self.shapes))
        verdict = "so it is taken" if self.is_taken else f"{self.least:g} at each are wanted"
        return (
            f"{self.precision} is so many times as fast as {self.instead_of} here, by calls of "
            f"texts x tokens: {figures}; {verdict}"
        )


def gain_of(
    allowed: Contender, chosen: Contender, feeds: Feeds, most: Shape, report: RoundReport
) -> Gain:
    """Each shape in `ROUNDS` rounds, the two in turns; no call has more than `most`."""
    shapes = [(min(texts, most[0]), min(tokens, most[1])) for texts, tokens in SHAPES]
    found = []
    for (texts, tokens), (fast, slow) in rounds_by_shape(
        (allowed, chosen), feeds, shapes, Rounds(ROUNDS, _ROUND_MS), report
    ):
        times = ratios([median(taken) for taken in slow], [median(taken) for taken in fast])
        found.append(ShapeGain(texts, tokens, spread(times)))
    return Gain(allowed.precision, chosen.precision, LEAST, tuple(found), facts())
