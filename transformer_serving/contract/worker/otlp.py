"""Spans as messages of OTLP, sent by OpenTelemetry's own exporter.

Its SDK makes several objects of each span and encodes those: 92 µs of processor time for the seven
of one request, where filling the messages takes 13. Address, headers, certificates, timeout,
compression and retries stay the exporter's.

Tested by tests/contract/test_otlp.py and tests/contract/test_spans.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any, NamedTuple

_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_ENCODER = "encode_spans"
# opentelemetry/proto/trace/v1/trace.proto: SpanKind, StatusCode, SpanFlags.
_KINDS = {"internal": 1, "server": 2, "client": 3}
_ERROR = 2
_TELLS_REMOTE, _IS_REMOTE = 0x100, 0x200


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


def exporter(attributes: Mapping[str, str]) -> Any:
    """OTLPSpanExporter, whose `export` takes Spans; `attributes` are the resource's, which
    OpenTelemetry's variables come over. Raises ImportError where it is not installed, or is one
    that has no encoder of this name.
    """
    resources = import_module("opentelemetry.sdk.resources")
    found = find_spec(_EXPORTER)
    if found is None or found.loader is None:
        raise ImportError(_EXPORTER)
    # A copy of its module: others in this process may use theirs.
    module = module_from_spec(found)
    found.loader.exec_module(module)
    head = _head(getattr(module, _ENCODER, None), resources.Resource.create(attributes))
    setattr(module, _ENCODER, encoder(head))
    return module.OTLPSpanExporter()


def _head(encode: Callable[[Sequence[Any]], Any] | None, resource: Any) -> Any:
    """The library's own message of a span, without the span: what all have in common."""
    if encode is None:
        raise ImportError(f"{_EXPORTER}.{_ENCODER}")
    sdk = import_module("opentelemetry.sdk.trace")
    api = import_module("opentelemetry.trace")
    scopes = import_module("opentelemetry.sdk.util.instrumentation")
    scope = scopes.InstrumentationScope("transformer_serving")
    context = api.SpanContext(1, 1, is_remote=False)
    empty = sdk.ReadableSpan("", context, resource=resource, instrumentation_scope=scope)
    head = encode([empty])
    head.resource_spans[0].scope_spans[0].ClearField("spans")
    return head


def encoder(head: Any) -> Callable[[Sequence[Span]], Any]:
    def encode(spans: Sequence[Span]) -> Any:
        message = type(head)()
        message.CopyFrom(head)
        add = message.resource_spans[0].scope_spans[0].spans.add
        for span in spans:
            _fill(add(), span)
        return message

    return encode


def _fill(message: Any, span: Span) -> None:
    message.trace_id, message.span_id = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    message.name, message.kind = span.name, _KINDS[span.kind]
    message.start_time_unix_nano, message.end_time_unix_nano = span.start_ns, span.end_ns
    message.flags = _TELLS_REMOTE
    if span.parent_id is not None:
        message.parent_span_id = bytes.fromhex(span.parent_id)
        message.flags |= _IS_REMOTE if span.parent_is_remote else 0
    if span.state:
        message.trace_state = span.state
    for name, value in span.attributes.items():
        _set(message.attributes.add(), name, value)
    for trace_id, span_id in span.links:
        message.links.add(
            trace_id=bytes.fromhex(trace_id), span_id=bytes.fromhex(span_id), flags=_TELLS_REMOTE
        )
    for event, at in span.events:
        message.events.add(name=event, time_unix_nano=at)
    message.status.SetInParent()
    if span.failed:
        message.status.code = _ERROR


def _set(attribute: Any, name: str, value: str | float) -> None:
    attribute.key = name
    if isinstance(value, str):
        attribute.value.string_value = value
    elif isinstance(value, int):
        attribute.value.int_value = value
    else:
        attribute.value.double_value = value
