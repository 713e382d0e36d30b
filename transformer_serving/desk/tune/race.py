"""Rivals measured in turns until all but the best are surely worse: successive elimination.

In every round each rival that is left is measured once, so that what changes on the machine hits
all of them. Two are compared by the ratios of their figures in the same rounds, and the median of
these has bounds (desk/bench/bounds.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from transformer_serving.desk.bench.bounds import Spread, spread

# After so many rounds it is looked who is surely worse, each time with CONFIDENCE: by the union
# bound a rival is wrongly left behind another with a chance of at most 4 times 2 %.
LOOKS = (6, 9, 12, 16)
CONFIDENCE = 0.98
# By so much a rival must seem better to take the place of one that is not surely worse.
_WORTH = 1.01
# With fewer rounds nothing is changed.
_FEWEST = 3


@dataclass(frozen=True)
class Lane:
    """A rival's figures, one for each round that it ran; larger is better.

    `lost_to` is who it was surely worse than.
    """

    name: str
    figures: tuple[float, ...]
    lost_to: str | None = None


def race(
    names: Sequence[str],
    measure: Callable[[str, int], float | None],
    go_on: Callable[[], bool] = lambda: True,
    looks: Sequence[int] = LOOKS,
    rounds: int = LOOKS[-1],
) -> tuple[Lane, ...]:
    """Every rival's lane, in the order of `names`; without `looks` nobody is left behind.
    `measure` is told the rival and the round's number, from 1; where it has no figure of it, that
    rival is out.

    Ends when one is left, after the last round, or where `go_on` says no before a round. Raises
    ValueError for a name that is there twice.
    """
    if len(set(names)) != len(names):
        raise ValueError("a rival can run once")
    figures: dict[str, list[float]] = {name: [] for name in names}
    lost: dict[str, str] = {}
    gone: set[str] = set()
    for number in range(1, rounds + 1):
        left = [name for name in names if name not in lost and name not in gone]
        if len(left) < 2 or not go_on():
            break
        # Who goes first changes with every round.
        turn = number % len(left)
        for name in (*left[turn:], *left[:turn]):
            figure = measure(name, number)
            if figure is None:
                gone.add(name)
            else:
                figures[name].append(figure)
        if number in looks:
            lost |= surely_worse({name: figures[name] for name in left if name not in gone})
    return tuple(Lane(name, tuple(figures[name]), lost.get(name)) for name in names)


def surely_worse(figures: dict[str, list[float]]) -> dict[str, str]:
    """Those that another one is surely better than, each with the one that beats it furthest."""
    found = {}
    for name, mine in figures.items():
        ratios = {
            other: spread(ratios_of(mine, theirs), CONFIDENCE)
            for other, theirs in figures.items()
            if other != name
        }
        beaten = {other: ratio for other, ratio in ratios.items() if ratio.upper < 1}
        if beaten:
            found[name] = min(beaten, key=lambda other: beaten[other].median)
    return found


def ratios_of(over: Iterable[float], under: Iterable[float]) -> list[float]:
    """Round by round; a figure of 0, where nothing was answered, is infinitely worse."""
    return [
        top / bottom if bottom else (1.0 if not top else math.inf)
        for top, bottom in zip(over, under, strict=True)
    ]


def chosen(lanes: Sequence[Lane]) -> str:
    """The first lane is the present value's: it stays unless it is surely worse than another, or
    one that is not surely worse than any seems better by _WORTH. Where it is out, the others are
    held against each other: they ran rounds that it did not."""
    present = lanes[0]
    left = _left(lanes)
    if not left:
        return present.name
    first = left[0]
    # To one that answered nothing all ratios are the same.
    ranks = {lane.name: (beside(lane, first).median, spread(lane.figures).median) for lane in left}
    best = max(ranks, key=lambda name: ranks[name])
    return best if first is not present or ranks[best][0] >= _WORTH else present.name


def widest(lanes: Sequence[Lane], values: Mapping[str, int | str]) -> str:
    """The largest number among those that are not surely worse than another, after rounds enough to
    know of any."""
    return max(
        (lane.name for lane in _left(lanes, LOOKS[0])),
        key=lambda name: int(values[name]),
        default=lanes[0].name,
    )


def _left(lanes: Sequence[Lane], fewest: int = _FEWEST) -> list[Lane]:
    """Those that are not surely worse than another; none where a lane has fewer rounds."""
    if min(len(lane.figures) for lane in lanes) < fewest:
        return []
    return [lane for lane in lanes if lane.lost_to is None]


def beside(lane: Lane, other: Lane) -> Spread:
    """Ratios in the rounds that both ran."""
    count = min(len(lane.figures), len(other.figures))
    return spread(ratios_of(lane.figures[:count], other.figures[:count]), CONFIDENCE)
