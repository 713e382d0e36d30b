"""Spans on their way out of a worker: a bounded queue, and a thread that sends what is in it.

Nobody waits for a receiver: what finds the queue full, or what no receiver takes, is counted and
gone. OpenTelemetry's packages are imported when the queue is opened, which a worker without traces
never does.

Tested by tests/contract/test_spans.py.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any, NamedTuple

from transformer_serving.contract.worker.process_wide import process_wide

log = logging.getLogger("transformer_serving.traces")

SENT, FAILED, DROPPED = "sent", "failed", "dropped"
_SERVICE = "transformer-serving"
# OpenTelemetry's own names and defaults.
_MOST = ("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
_BATCH = ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)
_DELAY_MS = ("OTEL_BSP_SCHEDULE_DELAY", 5000)
# What a worker that ends gives its last spans.
_LAST_S = 2.0
_TELL_EVERY_S = 60.0


class Span(NamedTuple):
    """Ids in hexadecimal digits, times in Unix nanoseconds, `links` as trace and span.

    In the queue it is a plain tuple: code of several versions may fill it.
    """

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str | None
    parent_is_remote: bool
    state: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int | float]
    links: tuple[tuple[str, str], ...]
    events: tuple[tuple[str, int], ...]
    failed: bool


class SpanQueue:
    """The worker's one queue. `put` never waits."""

    def __init__(self, shared: SimpleNamespace) -> None:
        self._shared = shared

    def put(self, span: Span) -> None:
        shared = self._shared
        if len(shared.rows) >= shared.most:
            shared.dropped += 1
            return
        shared.rows.append(tuple(span))
        if len(shared.rows) >= shared.batch:
            shared.wake.set()


def open_queue() -> SpanQueue | None:
    """None where OpenTelemetry's packages are not installed, which is said once."""
    shared = process_wide("spans", _open)
    return None if shared is None else SpanQueue(shared)


def _open() -> SimpleNamespace | None:
    try:
        sender = _Sender()
    except ImportError:
        log.warning("no spans are sent: install transformer-serving[tracing]")
        return None
    shared = SimpleNamespace(
        rows=deque(), most=_number(*_MOST), batch=_number(*_BATCH), dropped=0,
        wake=threading.Event(), ends=False,
    )  # fmt: skip
    sending = threading.Thread(target=_send_all, args=(shared, sender), name="spans", daemon=True)
    sending.start()
    atexit.register(_end, shared, sending)
    return shared


def _end(shared: SimpleNamespace, sending: threading.Thread) -> None:
    """Give the last spans a moment, and a receiver that hangs no more than that."""
    shared.ends = True
    shared.wake.set()
    sending.join(_LAST_S)


def _send_all(shared: SimpleNamespace, sender: _Sender) -> None:
    losses = _Losses()
    delay_s = _number(*_DELAY_MS) / 1000
    ends = False
    while not ends:
        shared.wake.wait(delay_s)
        shared.wake.clear()
        ends = shared.ends
        # As many as are there now: what comes while they are sent waits for its batch.
        left = len(shared.rows)
        while left > 0:
            rows = [shared.rows.popleft() for _ in range(min(left, shared.batch))]
            left -= len(rows)
            losses.count(SENT if sender.send([Span(*row) for row in rows]) else FAILED, len(rows))
        dropped, shared.dropped = shared.dropped, 0
        losses.count(DROPPED, dropped)


class _Losses:
    """Counts what became of spans, and says what was lost, once a minute at most."""

    def __init__(self) -> None:
        self._counter = process_wide("spans_total", _counter)
        self._lost = 0
        self._told = float("-inf")

    def count(self, outcome: str, number: int) -> None:
        if self._counter is not None and number:
            # A cleaner of temporary files may have taken the figures' folder.
            with suppress(OSError):
                self._counter.labels(outcome).inc(number)
        if outcome != SENT:
            self._lost += number
        if self._lost and time.monotonic() - self._told > _TELL_EVERY_S:
            log.warning("%d spans were lost: the receiver of spans does not take them", self._lost)
            self._lost, self._told = 0, time.monotonic()


def _counter() -> Any:
    try:
        library = import_module("prometheus_client")
    except ImportError:
        return None
    text = "Spans by what became of them: sent, failed at the receiver, dropped before it."
    return library.Counter("transformer_serving_spans", text, ("outcome",))


class _Sender:
    """OpenTelemetry's exporter. Raises ImportError where it is not installed."""

    def __init__(self) -> None:
        exporter = import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        export = import_module("opentelemetry.sdk.trace.export")
        resources = import_module("opentelemetry.sdk.resources")
        scopes = import_module("opentelemetry.sdk.util.instrumentation")
        # It tells of every try; what is lost is told here, in the form of our other lines.
        theirs = logging.getLogger("opentelemetry.exporter.otlp")
        if theirs.level == logging.NOTSET:
            theirs.setLevel(logging.CRITICAL)
        self._exporter = exporter.OTLPSpanExporter()
        self._done = export.SpanExportResult.SUCCESS
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come over it.
        named = resources.Resource.create({"service.name": _SERVICE} if _unnamed() else {})
        self._resource = _the_one(resources.Resource)(named.attributes, named.schema_url)
        self._scope = scopes.InstrumentationScope("transformer_serving")
        self._read = _reader()

    def send(self, spans: list[Span]) -> bool:
        try:
            readable = [self._read(span, self._resource, self._scope) for span in spans]
            return bool(self._exporter.export(readable) is self._done)
        except Exception as error:
            # Whatever its transport raises: the thread must go on.
            log.warning("spans could not be sent: %s", type(error).__name__)
            return False


def _the_one(resource: Any) -> Any:
    """The class of a worker's only resource: theirs is compared by its JSON, anew for each span."""
    own = {"__hash__": object.__hash__, "__eq__": object.__eq__}
    return type("OneResource", (resource,), own)


def _reader() -> Callable[[Span, Any, Any], Any]:
    sdk, api = import_module("opentelemetry.sdk.trace"), import_module("opentelemetry.trace")
    sampled = api.TraceFlags(api.TraceFlags.SAMPLED)
    kinds = {kind.name.lower(): kind for kind in api.SpanKind}
    statuses = [api.Status(api.StatusCode.UNSET), api.Status(api.StatusCode.ERROR)]
    no_state = api.TraceState()

    def context(trace_id: str, span_id: str, *, remote: bool, state: Any = no_state) -> Any:
        return api.SpanContext(int(trace_id, 16), int(span_id, 16), remote, sampled, state)

    def read(span: Span, resource: Any, scope: Any) -> Any:
        state = api.TraceState.from_header([span.state]) if span.state else no_state
        parent = None
        if span.parent_id is not None:
            parent = context(span.trace_id, span.parent_id, remote=span.parent_is_remote)
        return sdk.ReadableSpan(
            span.name,
            context=context(span.trace_id, span.span_id, remote=False, state=state),
            parent=parent,
            resource=resource,
            attributes=span.attributes,
            events=[sdk.Event(name, timestamp=at) for name, at in span.events],
            links=[api.Link(context(*ids, remote=False)) for ids in span.links],
            kind=kinds[span.kind],
            status=statuses[span.failed],
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
        )

    return read


def _unnamed() -> bool:
    named = "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return not named and not os.environ.get("OTEL_SERVICE_NAME")


def _number(name: str, default: int) -> int:
    """As OpenTelemetry reads its variables: what is none is the default."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() and 0 < len(text) < 10 and int(text) else default
