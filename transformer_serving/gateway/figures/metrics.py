"""/metrics: the figures of all workers, as Prometheus reads them, and the gateway's own.

Tested by tests/gateway/test_metrics.py.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from itertools import chain
from typing import Any

import prometheus_client as prometheus
from prometheus_client.exposition import choose_encoder

from transformer_serving.contract.worker.process_wide import process_wide
from transformer_serving.gateway.asgi import Send
from transformer_serving.gateway.figures.counted_rows import (
    REFUSED,
    REFUSED_HELP,
    REFUSED_LABELS,
    Known,
)
from transformer_serving.gateway.figures.departed import Departed, Row, forget_rows
from transformer_serving.gateway.figures.file import renew_files
from transformer_serving.gateway.figures.folder import take_ends
from transformer_serving.gateway.figures.page import Write, page, tidy
from transformer_serving.gateway.golden_rounds import GoldenResult

PATH = "/metrics"
MEDIA_TYPE = prometheus.CONTENT_TYPE_LATEST
_OPENMETRICS = b"application/openmetrics-text"

_PREFIX = "transformer_serving_"


class Metrics:
    """What /metrics answers; counts requests by key, and those that the gateway refuses itself.

    `known` gives the endpoints whose rows are shown, `tell` is called before a page is made,
    `generating` gives the names behind which text is generated, and `forget` hears of endpoints
    that are gone for good. Where requests are `traced`, who
    asks for OpenMetrics' form gets it, with exemplars.
    """

    def __init__(
        self, known: Callable[[], Known] = lambda: None, tell: Callable[[], None] = lambda: None,
        generating: Callable[[], Collection[str]] = tuple,
        forget: Callable[[Collection[str]], None] = lambda endpoints: None, *, traced: bool = False,
    ) -> None:  # fmt: skip
        self._known = known
        self._tell = tell
        self._generating = generating
        self._forget = forget
        self._departed = Departed()
        self._traced = traced
        self._refused = process_wide("gateway_refused", _refused)
        self._golden = _Rows(process_wide("gateway_golden", _golden))
        self._bundle = _Rows(process_wide("gateway_bundle", _bundle))
        self._generates = _Rows(process_wide("gateway_generates", _generates))
        self._requests = process_wide("gateway_requests", _requests)
        self._of_key: dict[str, prometheus.Counter] = {}

    def note_start(self, since: float) -> None:
        """`since` is the supervisor's start."""
        process_wide("gateway_start", _start).set(since)
        _count_ends()

    def asked(self, key: str) -> None:
        """A request that came with this key, by its name."""
        counter = self._of_key.get(key)
        if counter is None:
            counter = self._of_key[key] = self._requests.labels(key)
        counter.inc()

    def refused(self, code: str, endpoint: str = "") -> None:
        """`endpoint` is one that exists, or empty."""
        self._refused.labels(endpoint, code).inc()

    async def goldens(self, results: Mapping[str, GoldenResult]) -> None:
        """A round of golden requests, by endpoint."""
        named = [result for result in results.values() if result.bundle]
        left = [
            *self._golden.tell({(name,): one.state == "ok" for name, one in results.items()}),
            *self._bundle.tell({(one.endpoint, one.bundle, one.task): 1 for one in named}),
            *self._generates.tell({(name,): 1 for name in self._generating()}),
        ]
        # Made with the first: a gauge is 0 from its making on, a round of long ago.
        process_wide("gateway_golden_round", _round).set_to_current_time()
        gone = self._departed.rows(self._known())
        # Before its rows go: what is held they would not leave.
        self._forget(gone)
        # Files that were taken come back too, before another worker's page lacks them for long.
        await asyncio.to_thread(forget_rows, [*left, *chain.from_iterable(gone.values())])
        # Where nobody asks for pages but those of the endpoints' own port.
        await asyncio.to_thread(_count_ends)
        await asyncio.to_thread(tidy)

    async def text(
        self, write: Write = prometheus.generate_latest, *, is_openmetrics: bool = False
    ) -> bytes:
        self._tell()
        known = self._known()
        departed = partial(self._departed.among, known)
        return await _made(partial(page, known, write, departed, is_openmetrics=is_openmetrics))

    async def text_of(self, names: Collection[str]) -> bytes:
        """Rows of these endpoints alone: none of keys, of workers or of the gateway as a whole."""
        self._tell()
        return await _made(partial(page, names, alone=True))

    async def answer(self, send: Send, accept: bytes = b"") -> None:
        write: Write = prometheus.generate_latest
        media_type = MEDIA_TYPE
        if self._traced and _OPENMETRICS in accept:
            write, media_type = choose_encoder(accept.decode("latin-1"))
        is_openmetrics = media_type.encode().startswith(_OPENMETRICS)
        body = await self.text(write, is_openmetrics=is_openmetrics)
        headers = [
            (b"content-type", media_type.encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _made(make: Callable[[], bytes]) -> bytes:
    """A page: many workers make many files to read."""

    def of_all_files() -> bytes:
        renew_files()
        _count_ends()
        return make()

    return await asyncio.to_thread(of_all_files)


class _Rows:
    """Of a gauge, told anew each time."""

    def __init__(self, gauge: Any) -> None:
        self._gauge = gauge
        self._told: Collection[tuple[str, ...]] = ()

    def tell(self, rows: Mapping[tuple[str, ...], float]) -> Collection[Row]:
        """Those that are not told again: to be let go of."""
        left = {*self._told} - rows.keys()
        for labels in left:
            # No page shows it, as long as it is there.
            self._gauge.labels(*labels).set(math.nan)
        for labels, value in rows.items():
            self._gauge.labels(*labels).set(value)
        self._told = rows.keys()
        return [(self._gauge, labels) for labels in left]


def tell_syncs(processor_class: Any) -> None:
    """Have the host's sync thread note when the control plane last answered it.

    The SDK logs a task that it could not read again and goes on with the one it had, so a sync
    counts where the task's data are new ones.
    """
    take_over = processor_class.deserialize
    read: list[Any] = [None]

    def deserialize(self: Any, task: Any = None, *arguments: Any, **named: Any) -> Any:
        changed = take_over(self, task, *arguments, **named)
        data = getattr(task, "_data", None)
        if data is not None and data is not read[0]:
            read[0] = data
            process_wide("gateway_sync", _sync).set_to_current_time()
        return changed

    processor_class.deserialize = deserialize


def in_flight() -> prometheus.Gauge:
    """By endpoint, the workers' numbers added up."""
    return process_wide("gateway_in_flight", _in_flight)


def _refused() -> prometheus.Counter:
    return prometheus.Counter(REFUSED, REFUSED_HELP, REFUSED_LABELS)


def _requests() -> prometheus.Counter:
    return prometheus.Counter(
        f"{_PREFIX}gateway_requests",
        "Requests by the name of the key that they came with, refused ones included.",
        ("key",),
    )


def _in_flight() -> prometheus.Gauge:
    return prometheus.Gauge(
        f"{_PREFIX}gateway_requests_in_flight",
        "Requests whose answer has not ended.",
        ("endpoint",),
        multiprocess_mode="livesum",
    )


def _of_worker(name: str, text: str, *labels: str) -> prometheus.Gauge:
    return prometheus.Gauge(f"{_PREFIX}{name}", text, labels, multiprocess_mode="liveall")


def _golden() -> prometheus.Gauge:
    text = "Whether the endpoint's last golden request was answered as it should."
    return _of_worker("gateway_golden_ok", text, "endpoint")


def _round() -> prometheus.Gauge:
    text = "When the last round of golden requests ended, in Unix time."
    return _of_worker("gateway_golden_round_timestamp_seconds", text)


def _start() -> prometheus.Gauge:
    text = "When the gateway that the worker belongs to was started, in Unix time."
    return _of_worker("gateway_start_time_seconds", text)


def _count_ends() -> None:
    """Those of workers that no other worker has counted: the supervisor gives no page itself."""
    process_wide("gateway_restarts", _restarts).inc(take_ends())


def _restarts() -> prometheus.Counter:
    text = "Workers that ended unasked and were started again."
    return prometheus.Counter(f"{_PREFIX}gateway_worker_restarts", text)


def _bundle() -> prometheus.Gauge:
    text = "The bundle that answered the endpoint's last golden request: 1."
    return _of_worker("gateway_bundle_info", text, "endpoint", "bundle", "task")


def _generates() -> prometheus.Gauge:
    text = "A name, an endpoint's or a canary route's, behind which text is generated: 1."
    return _of_worker("gateway_generates_text", text, "endpoint")


def _sync() -> prometheus.Gauge:
    text = "When the control plane last answered the worker's sync, in Unix time."
    return _of_worker("gateway_last_sync_timestamp_seconds", text)
