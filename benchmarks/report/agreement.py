"""Whether a run agrees with the stored one: its figures, and ratios to ours, lie within the
bounds of that one's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.report.tables import OURS, table
from benchmarks.runs.results import Results
from transformer_serving.desk.bench.bounds import Spread


@dataclass(frozen=True)
class Pair:
    """One figure of both runs: texts a second, or how many times another's ours are."""

    load: str
    name: str
    first: Spread
    second: Spread

    @property
    def agrees(self) -> bool:
        return self.first.lower <= self.second.median <= self.first.upper


def figures(first: Results, second: Results) -> list[Pair]:
    """Texts a second of everybody whom both runs measured, by load."""
    return [
        Pair(load, name, one, other)
        for load, name in _rows(first)
        if (one := first.spread(name, load)) and (other := second.spread(name, load))
    ]


def ratios(first: Results, second: Results) -> list[Pair]:
    """How many times the others' texts a second ours are, of those with a real engine."""
    return [
        Pair(load, name, one, other)
        for load, name in _rows(first)
        if name != OURS and first.rows[name].computes
        if (one := first.ratio(OURS, name, load)) and (other := second.ratio(OURS, name, load))
    ]


def _rows(results: Results) -> Iterator[tuple[str, str]]:
    return ((load, name) for load in results.loads for name in results.rows)


def text(first: Results, second: Results) -> str:
    """Both as Markdown, each with how many agree."""
    parts = []
    for title, digits, pairs in (
        ("texts/s", 0, figures(first, second)),
        ("ours, times", 2, ratios(first, second)),
    ):
        head = ("load", "row", title, "bounds", "again", "bounds", "")
        rows = [
            (
                pair.load, pair.name,
                *_cells(pair.first, digits), *_cells(pair.second, digits),
                "" if pair.agrees else "outside",
            )
            for pair in pairs
        ]  # fmt: skip
        agreed = sum(pair.agrees for pair in pairs)
        parts.append(f"{table(head, rows)}\n\n{agreed} of {len(pairs)} agree.")
    return "\n\n".join(parts)


def _cells(spread: Spread, digits: int) -> tuple[str, str]:
    bounds = f"{spread.lower:.{digits}f} to {spread.upper:.{digits}f}"
    return f"{spread.median:.{digits}f}", bounds
