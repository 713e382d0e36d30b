"""Endpoints that went, and figures that this worker lets go of.

Each rollout has an endpoint of its own for its candidate. prometheus_client keeps every row that
there ever was, in its files and in memory, and every page reads all of them.

Tested by tests/gateway/test_departed.py.
"""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

import prometheus_client as prometheus
from prometheus_client import values

from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.gateway.figures.counted_rows import Known
from transformer_serving.gateway.figures.file import forget_keys

# One that comes back before goes on where it was. Workers do not forget at the same moment: what
# one of them still has when the endpoint comes back, Prometheus takes for new requests.
_AFTER_S = 3600.0
_ENDPOINT = "endpoint"

# A figure's name, and a row's labels.
IsGone = Callable[[str, Mapping[str, str]], bool]


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

    def among(self, known: Known, names: Iterable[str]) -> Collection[str]:
        """Of these endpoints; '' is nobody, who stays."""
        if not known:
            return ()
        now = self._clock()
        with self._turn:
            for name in self._missed.keys() & {*known}:
                del self._missed[name]
            missed = {name: self._missed.setdefault(name, now) for name in {*names} - {"", *known}}
        return {name for name, since in missed.items() if now - since > _AFTER_S}

    def forget(self, known: Known) -> Collection[str]:
        """What this worker holds of them; their names."""
        gone = self.among(known, _endpoints())
        if gone:
            forget_rows(lambda name, labels: labels.get(_ENDPOINT) in gone)
        return gone


def forget_rows(is_gone: IsGone) -> None:
    """Whoever asks prometheus_client for such a row again gets a new one, which is 0."""
    for metric in _metrics():
        with metric._lock:
            for row in tuple(metric._metrics):
                if is_gone(metric._name, dict(zip(metric._labelnames, row, strict=True))):
                    del metric._metrics[row]
    _forget_values(is_gone)

    def is_gone_key(key: str) -> bool:
        name, _, labels, _ = json.loads(key)
        return is_gone(name, labels)

    forget_keys(is_gone_key)


def _forget_values(is_gone: IsGone) -> None:
    """prometheus_client keeps each number that it ever made, to begin it anew after a fork."""
    held = inspect.getclosurevars(values.ValueClass.__init__).nonlocals
    # Without a folder of files it keeps none.
    if "values" in held:
        with held["lock"]:
            held["values"][:] = [
                value for value in held["values"] if not is_gone(*_name_and_labels(value))
            ]


def _name_and_labels(value: Any) -> tuple[str, Mapping[str, str]]:
    _, name, _, names, row, *_ = value._params
    return name, dict(zip(names, row, strict=True))


def _endpoints() -> set[str]:
    return {
        row[metric._labelnames.index(_ENDPOINT)]
        for metric in _metrics()
        if _ENDPOINT in metric._labelnames
        for row in tuple(metric._metrics)
    }


def _metrics() -> Iterator[Any]:
    """Those with labels. Of some an older version of an endpoint's code has one of its own."""
    registry: Any = prometheus.REGISTRY
    of_endpoints: dict[Any, Any] = process_wide("metrics", dict)
    for metric in {*tuple(registry._collector_to_names), *tuple(of_endpoints.values())}:
        if getattr(metric, "_labelnames", ()):
            yield metric
