"""Which requests are traced, and what a traced one leaves behind in this worker.

Traces are on where OpenTelemetry's variables say where spans go. One that is not sampled pays for
the decision alone; of one that is, the spans are written when its times are known.

Tested by tests/contract/test_tracing.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from transformer_serving.contract.settings.setting import Setting, TextSetting
from transformer_serving.contract.worker.otlp import Span
from transformer_serving.contract.worker.request_context import Context, current_tracestate
from transformer_serving.contract.worker.spans import SpanQueue, open_queue
from transformer_serving.contract.worker.trace_context import (
    TraceContext,
    chance,
    new_span_id,
    new_trace_id,
    read_traceparent,
    read_tracestate,
    write_traceparent,
)

ENDPOINT = TextSetting(
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "",
    "Receiver of traces over OTLP's HTTP, such as http://collector:4318; empty: no traces.",
)
RATIO = Setting(
    "TRANSFORMER_SERVING_TRACE_RATIO",
    "0.01",
    0,
    1,
    "Part of the requests that is traced, of those whose caller has not decided it: 0 to 1.",
)
CALLERS = Setting(
    "TRANSFORMER_SERVING_TRACE_CALLERS",
    "10",
    0,
    100_000,
    "Requests a second and worker that callers may have traced, by a traceparent that says so; "
    "beyond it the ratio decides.",
)
SETTINGS = (ENDPOINT, RATIO, CALLERS)
# The first is the whole address of traces alone.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", ENDPOINT.name)
_OFF = (("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none"))

Attributes = Mapping[str, str | int | float]


def traces_are_on(environment: Mapping[str, str]) -> bool:
    if any(environment.get(name, "").strip().lower() == off for name, off in _OFF):
        return False
    return any(environment.get(name) for name in ENDPOINTS)


class Trace:
    """A sampled request: its span here, `span_id`, and what lies below it.

    Times are time.monotonic's.
    """

    __slots__ = ("_is_remote", "_queue", "_zero_ns", "parent_id", "span_id", "state", "trace_id")

    def __init__(
        self, queue: SpanQueue, parent: TraceContext | None, state: str, *, is_remote: bool
    ) -> None:
        self._queue = queue
        self._is_remote = is_remote
        # Of one request all times have the same zero, whatever becomes of the machine's clock.
        self._zero_ns = time.time_ns() - time.monotonic_ns()
        self.trace_id = new_trace_id() if parent is None else parent.trace_id
        self.parent_id = None if parent is None else parent.span_id
        self.span_id = new_span_id()
        self.state = state

    def traceparent(self, span_id: str | None = None) -> str:
        """For who is called from the request's own span, or from that one below it."""
        return write_traceparent(TraceContext(self.trace_id, span_id or self.span_id, sampled=True))

    def ended(
        self, name: str, kind: str, began: float, ended: float, attributes: Attributes, *,
        failed: bool = False,
    ) -> None:  # fmt: skip
        """The request's own span."""
        self._put(
            name, kind, self.span_id, self.parent_id, began, ended, attributes,
            failed=failed, is_remote=self._is_remote and self.parent_id is not None,
        )  # fmt: skip

    def below(
        self, name: str, kind: str, began: float, ended: float, attributes: Attributes, *,
        span_id: str | None = None, parent_id: str | None = None,
        links: tuple[tuple[str, str], ...] = (), events: tuple[tuple[str, float], ...] = (),
        failed: bool = False,
    ) -> None:  # fmt: skip
        """A span below the request's own, or below another that lies there."""
        self._put(
            name, kind, span_id or new_span_id(), parent_id or self.span_id, began, ended,
            attributes, links=links, events=events, failed=failed,
        )  # fmt: skip

    def _put(
        self, name: str, kind: str, span_id: str, parent_id: str | None, began: float,
        ended: float, attributes: Attributes, *, links: tuple[tuple[str, str], ...] = (),
        events: tuple[tuple[str, float], ...] = (), failed: bool, is_remote: bool = False,
    ) -> None:  # fmt: skip
        at = self._unix_ns
        self._queue.put(
            Span(
                name, kind, self.trace_id, span_id, parent_id, is_remote, self.state, at(began),
                at(ended), attributes, links, tuple((event, at(then)) for event, then in events),
                failed,
            )
        )  # fmt: skip

    def _unix_ns(self, moment: float) -> int:
        return self._zero_ns + int(moment * 1e9)


class Tracing:
    """Decides by ratio, and by what callers say: as many of these as `callers` lets in a second."""

    def __init__(self, queue: SpanQueue, ratio: float, callers: float) -> None:
        self._queue = queue
        self._ratio = ratio
        self._callers = callers
        # Less than one a second is one in several: it must come together.
        self._most = max(1.0, callers) if callers > 0 else 0.0
        self._left = self._most
        self._filled = time.monotonic()

    def enter(
        self, traceparent: str | None, tracestate: Callable[[], str] = str
    ) -> tuple[Trace | None, str | None]:
        """The request's trace, None where it has none, and the traceparent that is handed on."""
        caller = None if traceparent is None else read_traceparent(traceparent)
        if caller is None:
            if chance.random() >= self._ratio:
                return None, None
        elif not caller.sampled:
            return None, write_traceparent(caller)
        elif not self._callers_may() and chance.random() >= self._ratio:
            return None, write_traceparent(caller._replace(sampled=False))
        state = "" if caller is None else read_tracestate(tracestate())
        trace = Trace(self._queue, caller, state, is_remote=True)
        return trace, trace.traceparent()

    def inside(self, context: Context | None) -> Trace | None:
        """That of a request within this process: as its gateway decided, where it has one."""
        if context is None:
            return self.enter(None)[0]
        gateway = read_traceparent(context[1])
        if gateway is None or not gateway.sampled:
            return None
        return Trace(self._queue, gateway, current_tracestate.get() or "", is_remote=False)

    def _callers_may(self) -> bool:
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._filled) * self._callers)
        self._filled = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def check_settings(environment: Mapping[str, str]) -> None:
    """Raises ValueError naming a wrong variable, whether traces are on or not."""
    RATIO.number(environment)
    CALLERS.number(environment)


def read_tracing(environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """None where traces are off. Raises ValueError naming a wrong variable."""
    if not traces_are_on(environment):
        return None
    ratio, callers = RATIO.number(environment), CALLERS.number(environment)
    queue = open_queue()
    return None if queue is None else Tracing(queue, ratio, callers)
