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
from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from transformer_serving.contract.pip_line import pip_line
from transformer_serving.contract.worker.otlp import Span, exporter
from transformer_serving.contract.worker.process_wide import process_wide

log = logging.getLogger("transformer_serving.traces")

SENT, FAILED, DROPPED = "sent", "failed", "dropped"
_SERVICE = "transformer-serving"
# The extra `tracing` of pyproject.toml.
PACKAGES = "opentelemetry-exporter-otlp-proto-http opentelemetry-sdk"
# OpenTelemetry's own names and defaults.
_MOST = ("OTEL_BSP_MAX_QUEUE_SIZE", 2048)
_BATCH = ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512)
_DELAY_MS = ("OTEL_BSP_SCHEDULE_DELAY", 5000)
# What a worker that ends gives its last spans.
_LAST_S = 2.0
_TELL_EVERY_S = 60.0


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
        log.warning("no spans are sent: their packages are missing: %s", pip_line(PACKAGES))
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
        export = import_module("opentelemetry.sdk.trace.export")
        # It tells of every try; what is lost is told here, in the form of our other lines.
        theirs = logging.getLogger("opentelemetry.exporter.otlp")
        if theirs.level == logging.NOTSET:
            theirs.setLevel(logging.CRITICAL)
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come over it.
        self._exporter = exporter({"service.name": _SERVICE} if _unnamed() else {})
        self._done = export.SpanExportResult.SUCCESS

    def send(self, spans: list[Span]) -> bool:
        try:
            return bool(self._exporter.export(spans) is self._done)
        except Exception as error:
            # Whatever its transport raises: the thread must go on.
            log.warning("spans could not be sent: %s", type(error).__name__)
            return False


def _unnamed() -> bool:
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")
    named = any(one.partition("=")[0].strip() == "service.name" for one in attributes)
    return not named and not os.environ.get("OTEL_SERVICE_NAME")


def _number(name: str, default: int) -> int:
    """As OpenTelemetry reads its variables: what is none is the default."""
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() and 0 < len(text) < 10 and int(text) else default
