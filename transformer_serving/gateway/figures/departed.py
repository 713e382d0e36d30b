"""Endpoints that went, and figures that this worker lets go of.

Each rollout has an endpoint of its own for its candidate. prometheus_client keeps every row that
there ever was, in its files and in memory, and every page reads all of them.

Tested by tests/gateway/test_departed.py.
"""

from __future__ import annotations

import inspect
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from threading import Lock
from typing import Any

import prometheus_client as prometheus
from prometheus_client import values

from transformer_serving.contract.settings.preprocess import METRICS_PORT
from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.gateway.figures.counted_rows import Known
from transformer_serving.gateway.figures.file import WorkersFile, renew_files

# One that comes back before goes on where it was. Workers do not forget at the same moment: what
# one of them still has when the endpoint comes back, Prometheus takes for new requests.
_AFTER_S = 3600.0
_ENDPOINT = "endpoint"
# A user's own code in the process may count by endpoints too.
_OURS = "transformer_serving_"

# A metric, and the labels of one of its rows.
Row = tuple[Any, tuple[str, ...]]


class Departed:
    """Which endpoints are gone for good, by when this worker first missed them.

    `known` are those that there are. None is gone where it is None or empty, as for a worker that
    has only just started and does not know them yet.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._missed: dict[str, float] = {}
        # Pages are made beside the event loop.
        self._turn = Lock()
        # The port adds up what workers hold and knows no endpoints, so that its sums would fall
        # with each worker that forgets.
        self._is_for_port = os.environ.get(METRICS_PORT.name, "") not in ("", "0")

    def among(self, known: Known, names: Iterable[str]) -> Collection[str]:
        """Of these endpoints; '' is nobody, who stays."""
        if not known or self._is_for_port:
            return ()
        now = self._clock()
        with self._turn:
            for name in self._missed.keys() & {*known}:
                del self._missed[name]
            missed = {name: self._missed.setdefault(name, now) for name in {*names} - {"", *known}}
        return {name for name, since in missed.items() if now - since > _AFTER_S}

    def rows(self, known: Known) -> dict[str, list[Row]]:
        """What this worker holds of them, by their names."""
        held: dict[str, list[Row]] = {}
        for metric in _metrics():
            at = metric._labelnames.index(_ENDPOINT)
            for row in tuple(metric._metrics):
                held.setdefault(row[at], []).append((metric, row))
        return {name: held[name] for name in self.among(known, held)}


def forget_rows(rows: Iterable[Row]) -> None:
    """Whoever asks prometheus_client for such a row again gets a new one, which is 0.

    One that somebody still holds stays as it is: he would count on where another began at 0. To be
    called beside the event loop, as files are made anew.
    """
    numbers = {id(number): number for metric, row in rows for number in _let_go(metric, row)}
    if numbers:
        # prometheus_client keeps each number that it ever made, to begin it anew after a fork.
        inside = inspect.getclosurevars(values.ValueClass.__init__).nonlocals
        with inside["lock"]:
            inside["values"][:] = [one for one in inside["values"] if id(one) not in numbers]
    renew_files()


def _let_go(metric: Any, row: tuple[str, ...]) -> Collection[Any]:
    """The row's numbers in files, where nobody holds it."""
    with metric._lock:
        held = metric._metrics.pop(row, None)
        if held is None:
            return ()
        numbers, still_held = tuple(_numbers(held)), weakref.ref(held)
        del held
        if (held := still_held()) is not None:
            metric._metrics[row] = held
            return ()
        for number in numbers:
            if isinstance(number._file, WorkersFile):
                number._file.let_go(number._key)
    return numbers


def _numbers(row: Any) -> Iterator[Any]:
    """Without a folder of files there are none that anybody keeps."""
    if values.ValueClass._multiprocess:
        for part in vars(row).values():
            for one in part if isinstance(part, list) else (part,):
                if isinstance(one, values.ValueClass):
                    yield one


def _metrics() -> Iterator[Any]:
    """Ours by endpoint. Of some an older version of an endpoint's code has one of its own."""
    registry: Any = prometheus.REGISTRY
    of_endpoints: dict[Any, Any] = process_wide("metrics", dict)
    for metric in {*tuple(registry._collector_to_names), *tuple(of_endpoints.values())}:
        is_ours = getattr(metric, "_name", "").startswith(_OURS)
        if is_ours and _ENDPOINT in getattr(metric, "_labelnames", ()):
            yield metric
