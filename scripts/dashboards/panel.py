"""What a dashboard is: rows of panels, each with what it asks Prometheus and how that is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

GRID_COLUMNS = 24


class Kind(Enum):
    """How a panel draws what comes; `height` in rows of Grafana's grid."""

    LINES = "lines"
    STACKED = "stacked lines"
    HEATMAP = "heatmap"
    STAT = "number"
    NAMES = "names"
    BARS = "bars"
    STATES = "states over time"

    @property
    def height(self) -> int:
        return 4 if self in (Kind.STAT, Kind.NAMES) else 8

    @property
    def is_instant(self) -> bool:
        """Only the last value is drawn."""
        return self in (Kind.STAT, Kind.NAMES, Kind.BARS)


class Needs(Enum):
    """What must be there before a panel has anything to show; said below its title."""

    NOTHING = ""
    TEXT_GENERATION = "Empty where no endpoint generates text."
    KEYS = "Empty where the gateway has no keys."
    GPU = "Empty where Triton has no GPU."


@dataclass(frozen=True)
class Query:
    """`legend` may name labels of the result, as Grafana's legends do: {{endpoint}}."""

    expression: str
    legend: str = ""


@dataclass(frozen=True)
class Step:
    """From `value` upwards what is drawn has the colour; the first step's is minus infinity."""

    value: float | None
    colour: str


@dataclass(frozen=True)
class Word:
    """A value that is shown as a word."""

    value: int
    text: str
    colour: str


@dataclass(frozen=True)
class Panel:
    """One panel; `width` of the grid's 24 columns. `nothing` is shown where nothing comes.

    `decimals` are as many as Grafana thinks best unless said otherwise.
    """

    title: str
    kind: Kind
    unit: str
    width: int
    description: str
    queries: tuple[Query, ...]
    needs: Needs = Needs.NOTHING
    steps: tuple[Step, ...] = ()
    words: tuple[Word, ...] = ()
    nothing: str = ""
    decimals: int | None = None

    @property
    def said(self) -> str:
        return f"{self.description} {self.needs.value}".strip()


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """What is chosen at the top, of a query's answers; `hidden` ones follow from another.

    `pattern` takes a part of each answer.
    """

    name: str
    query: str
    hidden: bool = False
    pattern: str = ""


@dataclass(frozen=True)
class Mark:
    """A vertical line in every panel, where the expression has a value; `text` may name labels."""

    title: str
    expression: str
    text: str


@dataclass(frozen=True)
class Dashboard:
    name: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()
    marks: tuple[Mark, ...] = ()

    @property
    def uid(self) -> str:
        return f"transformer-serving-{self.name}"

    @property
    def file(self) -> str:
        return f"{self.name}.json"

    def panels(self) -> Iterator[Panel]:
        for row in self.rows:
            yield from row.panels
