"""Rivals measured in turns until all but the best are surely worse: successive elimination.

In every round each rival that is left is measured once, so that what changes on the machine hits
all of them. Two are compared by the ratios of their figures in the same rounds, and the median of
these has bounds (desk/bench/bounds.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from transformer_serving.desk.bench.bounds import spread

# After so many rounds it is looked who is surely worse, each time with CONFIDENCE: by the union
# bound a rival is wrongly left behind another with a chance of at most 4 times 2 %.
LOOKS = (6, 9, 12, 16)
CONFIDENCE = 0.98


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
