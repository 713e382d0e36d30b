"""Who is traced: by the ratio, by what callers say, and as the gateway of this process decided."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from transformer_serving.contract.worker import tracing as module
from transformer_serving.contract.worker.otlp import Span
from transformer_serving.contract.worker.request_context import current_tracestate
from transformer_serving.contract.worker.spans import SpanQueue
from transformer_serving.contract.worker.trace_context import (
    TraceContext,
    read_traceparent,
    write_traceparent,
)
from transformer_serving.contract.worker.tracing import (
    CALLERS,
    ENDPOINT,
    RATIO,
    SETTINGS,
    Trace,
    Tracing,
    read_tracing,
    traces_are_on,
)

CALLER = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", sampled=True)
SAMPLED = write_traceparent(CALLER)
UNSAMPLED = write_traceparent(CALLER._replace(sampled=False))


class Kept(SpanQueue):
    """Of spans that nobody sends."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace())
        self.spans: list[Span] = []

    def put(self, span: Span) -> None:
        self.spans.append(span)


@pytest.fixture
def queue() -> Kept:
    return Kept()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """time.monotonic, as `now` has it."""
    clock = SimpleNamespace(now=1000.0)
    times = SimpleNamespace(
        monotonic=lambda: clock.now, monotonic_ns=lambda: int(clock.now * 1e9), time_ns=lambda: 0
    )
    monkeypatch.setattr(module, "time", times)
    return clock


def test_without_a_receiver_there_is_nothing() -> None:
    assert read_tracing({}) is None
    assert read_tracing({row.name: "" for row in SETTINGS}) is None
    on = {ENDPOINT.name: "http://127.0.0.1:1"}
    assert traces_are_on(on)
    assert traces_are_on({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces"})
    assert not traces_are_on({**on, "OTEL_SDK_DISABLED": "true"})
    assert not traces_are_on({**on, "OTEL_TRACES_EXPORTER": "none"})
    assert all(row.help.endswith(".") for row in SETTINGS)


@pytest.mark.parametrize(
    ("name", "value"), [(RATIO.name, "1.5"), (RATIO.name, "all"), (CALLERS.name, "-1")]
)
def test_a_wrong_number_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        read_tracing({ENDPOINT.name: "http://127.0.0.1:1", name: value})


def test_the_ratio_decides_where_nobody_has(queue: Kept) -> None:
    tracing = Tracing(queue, 0.05, 10)
    made = [tracing.enter(None) for _ in range(4000)]
    traced = [trace for trace, _ in made if trace is not None]
    assert 120 < len(traced) < 290
    assert len({trace.trace_id for trace in traced}) == len(traced)
    assert all((trace is None) == (handed is None) for trace, handed in made)
    assert all(Tracing(queue, 0, 10).enter(None) == (None, None) for _ in range(100))
    assert all(Tracing(queue, 1, 0).enter("no traceparent")[0] for _ in range(100))


def test_a_caller_that_is_not_traced_stays_so(queue: Kept) -> None:
    assert Tracing(queue, 1, 10).enter(UNSAMPLED) == (None, UNSAMPLED)


def test_a_caller_that_is_traced_is_gone_on_with(queue: Kept) -> None:
    trace, handed_on = Tracing(queue, 0, 10).enter(SAMPLED, lambda: "a=1, b=2")
    assert trace is not None
    assert (trace.trace_id, trace.parent_id, trace.state) == (
        CALLER.trace_id, CALLER.span_id, "a=1,b=2"
    )  # fmt: skip
    assert handed_on == write_traceparent(CALLER._replace(span_id=trace.span_id))
    trace.ended("serve", "server", 1.0, 2.0, {})
    (span,) = queue.spans
    assert (span.parent_id, span.parent_is_remote, span.state) == (CALLER.span_id, True, "a=1,b=2")


def test_callers_may_have_one_in_several_seconds(queue: Kept, clock: SimpleNamespace) -> None:
    tracing = Tracing(queue, 0.0, 0.5)
    traced = []
    for _ in range(9):
        traced.append(tracing.enter(SAMPLED)[0] is not None)
        clock.now += 0.5
    assert traced == [True, False, False, False] * 2 + [True]
    none = Tracing(queue, 0.0, 0.0)
    clock.now += 1000
    assert none.enter(SAMPLED)[0] is None


def test_callers_have_so_many_a_second(queue: Kept, clock: SimpleNamespace) -> None:
    tracing = Tracing(queue, 0, 3)

    def traced(count: int) -> int:
        made = [tracing.enter(SAMPLED) for _ in range(count)]
        # Who is not traced says so to whoever it calls.
        assert {handed for trace, handed in made if trace is None} <= {UNSAMPLED}
        return sum(trace is not None for trace, _ in made)

    assert traced(10) == 3
    clock.now += 1 / 3 + 0.001
    assert traced(10) == 1
    clock.now += 100
    assert traced(10) == 3
    assert [Tracing(queue, 0, 0).enter(SAMPLED)[0] for _ in range(10)] == [None] * 10
    # Beyond it the ratio decides.
    assert all(Tracing(queue, 1, 0).enter(SAMPLED)[0] for _ in range(10))


def test_within_the_process_the_gateway_has_decided(queue: Kept) -> None:
    tracing = Tracing(queue, 1, 10)
    assert tracing.inside(("id", None)) is None
    assert tracing.inside(("id", UNSAMPLED)) is None
    assert tracing.inside(("id", "00-none")) is None
    token = current_tracestate.set("a=1")
    try:
        trace = tracing.inside(("id", SAMPLED))
    finally:
        current_tracestate.reset(token)
    assert trace is not None
    assert (trace.trace_id, trace.parent_id, trace.state) == (
        CALLER.trace_id, CALLER.span_id, "a=1"
    )  # fmt: skip
    trace.ended("serve", "internal", 1.0, 2.0, {})
    assert not queue.spans[0].parent_is_remote
    alone = tracing.inside(None)
    assert alone is not None
    assert alone.parent_id is None
    assert Tracing(queue, 0, 10).inside(None) is None


def test_what_lies_below_a_span_is_of_its_trace_and_time(
    queue: Kept, clock: SimpleNamespace
) -> None:
    trace = Trace(queue, None, "", is_remote=True)
    trace.below("a", "internal", 1000.25, 1000.5, {"x": 1})
    trace.below(
        "b", "client", 1001.0, 1002.0, {}, span_id="1" * 16, parent_id="2" * 16,
        links=(("3" * 32, "4" * 16),), events=(("first", 1001.5),), failed=True,
    )  # fmt: skip
    trace.ended("c", "server", 1000.0, 1002.0, {})
    a, b, c = queue.spans
    assert {a.trace_id, b.trace_id, c.trace_id} == {trace.trace_id}
    assert (a.parent_id, b.parent_id, c.parent_id) == (trace.span_id, "2" * 16, None)
    assert (b.span_id, c.span_id, c.parent_is_remote) == ("1" * 16, trace.span_id, False)
    # The clock of the test has Unix time 0 where its own is 1000.
    assert (a.start_ns, a.end_ns) == (250_000_000, 500_000_000)
    assert (b.events, b.links, b.failed) == (
        (("first", 1_500_000_000),), (("3" * 32, "4" * 16),), True
    )  # fmt: skip
    below = read_traceparent(trace.traceparent("5" * 16))
    assert below == TraceContext(trace.trace_id, "5" * 16, sampled=True)
