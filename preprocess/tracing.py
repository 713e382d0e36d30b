"""Spans for OpenTelemetry, where its packages are installed and an endpoint is configured.

Tested by tests/gateway/test_traces.py and tests/preprocess/test_passage.py.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from transformer_serving.contract.worker.process_wide import process_wide

log = logging.getLogger("transformer_serving.preprocess")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def tracer() -> Any:
    """The process's tracer, or None when there is nowhere to send spans."""
    return process_wide("tracer", _tracer)


def record(
    tracer: Any,
    endpoint: str,
    arrived_ns: int,
    stages: Mapping[str, float],
    attributes: Mapping[str, str | int],
    traceparent: str | None,
) -> str:
    """One request as a span below the caller's, with a span a stage; `stages` in seconds.

    Returns the id of the trace that it is in, the caller's or a new one.
    """
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = None
    if traceparent is not None:
        parent = TraceContextTextMapPropagator().extract({"traceparent": traceparent})
    span = tracer.start_span(
        f"serve {endpoint}",
        context=parent,
        kind=trace.SpanKind.SERVER,
        attributes=dict(attributes),
        start_time=arrived_ns,
    )
    inside = trace.set_span_in_context(span, parent)
    at = arrived_ns
    for stage, seconds in stages.items():
        part = tracer.start_span(stage, context=inside, start_time=at)
        at += int(seconds * 1e9)
        part.end(at)
    span.end(at)
    return str(trace.format_trace_id(span.get_span_context().trace_id))


def _tracer() -> Any:
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        packages = "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http"
        log.warning("no spans are sent: pip install %s", packages)
        return None
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider.get_tracer("transformer_serving")
