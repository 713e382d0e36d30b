"""How long answers took, for Prometheus: one histogram, of whoever stands nearest to the caller.

That is the gateway or, where there is none, the endpoint's own code in clearml-serving's app.

Tested by tests/contract/test_durations.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from transformer_serving.contract.errors import KINDS
from transformer_serving.contract.worker.deferred import Deferred
from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.contract.worker.tallies import HistogramTally

NAME = "transformer_serving_request_duration_seconds"
HELP = "From a request's arrival to the end of its answer."
LABELS = ("endpoint", "status", "code")
# Upper bounds in seconds. A request is given 30 s where nobody says otherwise, so 20 s and 60 s
# stand around that.
BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60
)  # fmt: skip
# Where no error of ours is the answer: a status below 400, or one of another's code.
OK, OTHER = "ok", "other"


def code_of(named: object, status: int) -> str:
    """The code of an answer that says its own, `named`, or says none: never one that is made up."""
    if isinstance(named, str) and (named == OK or named in KINDS):
        return named
    return OK if status < 400 else OTHER


# An endpoint, a status and a code.
Row = tuple[str, str, int]


class Traced(NamedTuple):
    """A request whose trace shows what a bucket is made of; `at` is Unix time."""

    trace_id: str
    seconds: float
    at: float


def status_of(code: str, status: int) -> int:
    """That of the code where it has one, whatever `status` a dialect made of it."""
    row = KINDS.get(code)
    return status if row is None else row.status


class _Tally(HistogramTally):
    """Answers of one row of labels that Prometheus was not told of yet; the last one traced of
    each bucket.
    """

    __slots__ = ("traced",)

    def __init__(self) -> None:
        super().__init__(BOUNDS)

    def clear(self) -> None:
        super().clear()
        self.traced: dict[int, Traced] = {}


class Durations:
    """Adds up in memory: `took` is called for every request, and a histogram's `observe` writes
    two numbers into files.

    `library` is prometheus_client, None where it is not installed: then nothing is told. `beside`
    is called whenever the rest is told, and `soon` has it told in a moment.
    """

    def __init__(self, library: Any, beside: Callable[[], None] = lambda: None) -> None:
        self._library = library
        self._beside = beside
        self.soon = Deferred(self.tell).soon
        self._tallies: dict[Row, _Tally] = {}

    def took(
        self, endpoint: str, code: str, status: int, seconds: float, trace_id: str | None = None
    ) -> None:
        """One answer. `status` is that of the code, whatever a dialect makes of it."""
        tally = self._tallies.get((endpoint, code, status))
        if tally is None:
            tally = self._tallies[endpoint, code, status] = _Tally()
        bucket = tally.observe(seconds)
        if trace_id is not None:
            tally.traced[bucket] = Traced(trace_id, seconds, time.time())
        self.soon()

    def forget(self, endpoints: Collection[str]) -> None:
        self._tallies = {row: one for row, one in self._tallies.items() if row[0] not in endpoints}

    def tell(self) -> None:
        """Hand what was added up to Prometheus. What cannot be written is kept for the next time:

        a cleaner of temporary files may have taken the folder.
        """
        self._beside()
        if self._library is None:
            self._tallies.clear()
            return
        histogram = process_wide("request_duration", self._histogram)
        for (endpoint, code, status), tally in self._tallies.items():
            if any(tally.counts):
                try:
                    child = histogram.labels(endpoint, str(status), code)
                except OSError:
                    continue
                # Of several workers prometheus_client keeps none.
                for at, traced in tally.traced.items():
                    child._buckets[at].set_exemplar(self._exemplar(traced))
                tally.tell(child)

    def _histogram(self) -> Any:
        return self._library.Histogram(NAME, HELP, LABELS, buckets=BOUNDS)

    def _exemplar(self, traced: Traced) -> Any:
        labels = {"trace_id": traced.trace_id}
        return self._library.samples.Exemplar(labels, traced.seconds, traced.at)
