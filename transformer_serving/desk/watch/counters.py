"""A page of figures in Prometheus' text form, and how far its counters rose between two looks.

Tested by tests/watch/test_counters.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

PREFIX = "transformer_serving_"
_SUM = "_sum"
# As long as the gateway keeps what it counted of an endpoint that is gone.
_KEPT_S = 3600.0


class Series(NamedTuple):
    """`name` without PREFIX; `labels` in the order of their names."""

    name: str
    labels: tuple[tuple[str, str], ...]

    def has(self, labels: Mapping[str, str]) -> bool:
        """Whether it has these labels, and perhaps more."""
        return all(label in self.labels for label in labels.items())

    def label(self, name: str) -> str | None:
        return next((value for label, value in self.labels if label == name), None)


Values = Mapping[Series, float]


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of /metrics; `at` is when it came, on time.monotonic's clock."""

    at: float
    counters: Values
    gauges: Values

    def select(self, name: str, **labels: str) -> Iterator[tuple[Series, float]]:
        """The gauges of that name which have these labels."""
        for series, value in self.gauges.items():
            if series.name == name and series.has(labels):
                yield series, value

    def gauge(self, name: str, **labels: str) -> float | None:
        """Their sum; None where there is none."""
        found = [value for _, value in self.select(name, **labels)]
        return sum(found) if found else None


def read_page(text: str, at: float) -> Page:
    """Those of this project's figures. Raises ValueError for what is no such page."""
    counters: dict[Series, float] = {}
    gauges: dict[Series, float] = {}
    for family in text_string_to_metric_families(text):
        values = gauges if family.type == "gauge" else counters
        for sample in family.samples:
            if sample.name.startswith(PREFIX) and not sample.name.endswith("_created"):
                name = sample.name.removeprefix(PREFIX)
                values[Series(name, tuple(sorted(sample.labels.items())))] = sample.value
    return Page(at, counters, gauges)


class Rise:
    """By series, how far it rose from page to page; one that was never there began at 0.

    A counter that fell says that the server began again, as Prometheus' rate() has it
    (https://prometheus.io/docs/prometheus/latest/querying/functions/#rate): what a counter shows
    then is what it rose by. All counters of a gateway begin again together, and its page is held
    against those before as a whole: one alone may stand higher than before the restart, and the
    buckets of a histogram would not fit each other. Sums of seconds say nothing: the same numbers
    added in another order may come out a trifle lower.

    A counter that is gone says nothing either: the page leaves out endpoints that were removed, and
    one that comes back counts on from where it was, or after an hour from 0. So one that was not on
    the page before and is lower says that its endpoint alone began again.
    """

    def __init__(self, first: Values) -> None:
        self._known = dict(first)
        self._shown = set(first)
        # When those were missed first that are gone.
        self._gone: dict[Series, float] = {}

    def next(self, page: Values, at: float = 0.0) -> dict[Series, float]:
        """Since the page before; `at` is when this one came, in seconds."""
        fell = {
            series
            for series, value in page.items()
            if value < self._known.get(series, 0.0) and not series.name.endswith(_SUM)
        }
        if not fell.isdisjoint(self._shown):
            self._forget(list(self._known))
        else:
            anew = {series.label("endpoint") for series in fell}
            back = page.keys() - self._shown
            self._forget([series for series in back if series.label("endpoint") in anew])
        rise = {series: value - self._known.get(series, 0.0) for series, value in page.items()}
        self._known.update(page)
        self._miss(page, at)
        return rise

    def _miss(self, page: Values, at: float) -> None:
        """Those that are not there; none is known for ever."""
        for series in self._shown - page.keys():
            self._gone[series] = at
        for series in page.keys() & self._gone.keys():
            del self._gone[series]
        self._forget([one for one, since in self._gone.items() if at - since >= _KEPT_S])
        self._shown = set(page)

    def _forget(self, those: Iterable[Series]) -> None:
        for series in those:
            self._known.pop(series, None)
            self._gone.pop(series, None)


class Risen:
    """How far counters rose within `seconds`; nothing is known of 0.0 seconds."""

    def __init__(self, seconds: float, *rises: Values) -> None:
        self.seconds = seconds
        sums: dict[Series, float] = {}
        for rise in rises:
            for series, value in rise.items():
                sums[series] = sums.get(series, 0.0) + value
        self._by_name = _by_name(sums)

    def of(self, name: str, **labels: str) -> Iterator[tuple[Series, float]]:
        """By series of that name which has these labels."""
        for series, value in self._by_name.get(name, ()):
            if series.has(labels):
                yield series, value

    def rate(self, name: str, **labels: str) -> float:
        """A second, of all these series together."""
        return sum(value for _, value in self.of(name, **labels)) / (self.seconds or 1.0)

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """A histogram's cumulative counts by upper bound, its series added up."""
        counts: dict[float, float] = {}
        for series, value in self.of(f"{name}_bucket", **labels):
            bound = float(series.label("le") or "nan")
            counts[bound] = counts.get(bound, 0.0) + value
        return counts


class _Step(NamedTuple):
    seconds: float
    rise: dict[Series, float]


class Window:
    """What happened within the last `span_s` seconds, from the pages of as many looks.

    The time between two pages is never cut: where nobody answered for longer than the span, the
    window is as long as that took.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._steps: deque[_Step] = deque()
        self._rise: Rise | None = None
        self._at = 0.0

    def add(self, page: Page) -> None:
        """The next page; its time is later than that of the one before."""
        if self._rise is None:
            self._rise = Rise(page.counters)
        else:
            self._steps.append(_Step(page.at - self._at, self._rise.next(page.counters, page.at)))
        self._at = page.at
        while len(self._steps) > 1 and self._seconds() - self._steps[0].seconds >= self._span_s:
            self._steps.popleft()

    def all(self) -> Risen:
        """Over the whole window."""
        return Risen(self._seconds(), *(step.rise for step in self._steps))

    def last(self) -> Risen:
        """Since the page before the newest one."""
        newest = list(self._steps)[-1:]
        return Risen(sum(step.seconds for step in newest), *(step.rise for step in newest))

    def _seconds(self) -> float:
        return sum(step.seconds for step in self._steps)


def _by_name(values: Values) -> dict[str, list[tuple[Series, float]]]:
    found: dict[str, list[tuple[Series, float]]] = {}
    for series, value in values.items():
        found.setdefault(series.name, []).append((series, value))
    return found
