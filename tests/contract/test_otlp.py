"""Our messages are those that OpenTelemetry's own encoder makes of its SDK's spans."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from transformer_serving.contract.worker.otlp import Span, _head, encoder

RESOURCE = Resource.create({"service.name": "mine", "number": 3})
SCOPE = InstrumentationScope("transformer_serving")
SAMPLED = api.TraceFlags(api.TraceFlags.SAMPLED)


def ids(digits: int) -> st.SearchStrategy[str]:
    return st.integers(1, 16**digits - 1).map(lambda number: f"{number:0{digits}x}")


TRACES, SPANS, TIMES = ids(32), ids(16), st.integers(0, 2**63 - 1)
NAMES = st.text(min_size=1, max_size=40)
VALUES = st.text(max_size=300) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
ROWS = st.builds(
    Span,
    name=NAMES,
    kind=st.sampled_from(["internal", "server", "client"]),
    trace_id=TRACES,
    span_id=SPANS,
    parent_id=st.none() | SPANS,
    parent_is_remote=st.booleans(),
    state=st.sampled_from(["", "a=1", "a=1,b@c=2"]),
    start_ns=TIMES,
    end_ns=TIMES,
    attributes=st.dictionaries(NAMES, VALUES, max_size=5),
    links=st.lists(st.tuples(TRACES, SPANS), max_size=2).map(tuple),
    events=st.lists(st.tuples(NAMES, TIMES), max_size=2).map(tuple),
    failed=st.booleans(),
)


def context(trace_id: str, span_id: str, *, remote: bool = False, state: str = "") -> Any:
    known = api.TraceState.from_header([state]) if state else None
    return api.SpanContext(int(trace_id, 16), int(span_id, 16), remote, SAMPLED, known)


def as_the_sdk_has_it(span: Span) -> sdk.ReadableSpan:
    parent = None
    if span.parent_id is not None:
        parent = context(span.trace_id, span.parent_id, remote=span.parent_is_remote)
    return sdk.ReadableSpan(
        span.name,
        context=context(span.trace_id, span.span_id, state=span.state),
        parent=parent,
        resource=RESOURCE,
        attributes=span.attributes,
        events=[sdk.Event(name, timestamp=at) for name, at in span.events],
        links=[api.Link(context(*one)) for one in span.links],
        kind=api.SpanKind[span.kind.upper()],
        status=api.Status(api.StatusCode.ERROR if span.failed else api.StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=SCOPE,
    )


@given(st.lists(ROWS, min_size=1, max_size=3))
def test_messages_are_those_of_the_library(spans: list[Span]) -> None:
    encode = encoder(_head(encode_spans, RESOURCE))
    assert encode(spans) == encode_spans([as_the_sdk_has_it(span) for span in spans])


def test_the_next_batch_has_nothing_of_the_one_before() -> None:
    encode = encoder(_head(encode_spans, RESOURCE))
    span = Span("x", "server", "1" * 32, "2" * 16, None, False, "", 1, 2, {}, (), (), False)
    assert encode([span]) == encode([span])
