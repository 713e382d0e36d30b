"""Calls of the engine as spans, and Triton told which trace they are in.

Tested by tests/preprocess/test_traced_calls.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from preprocess.queue.ticket import Text, Ticket
from preprocess.tracing import PassageTrace
from preprocess.triton.handed_on import handed_on
from transformer_serving.contract.errors import FAULTS, ServingError
from transformer_serving.contract.worker.trace_context import HEADER, STATE_HEADER, new_span_id
from transformer_serving.contract.worker.tracing import Attributes, Trace

# Those of requests that are traced, while they wait or are computed.
TracedTickets = dict[Ticket, PassageTrace]


@contextmanager
def traced_call(
    traced: TracedTickets, texts: Sequence[Text], tokens: int, length: int
) -> Iterator[None]:
    """One call with these texts, of which some are traced; their `tokens` without padding."""
    tickets = dict.fromkeys(text.ticket for text in texts)
    traces = [traced[ticket] for ticket in tickets if ticket in traced]
    if not traces:
        yield
        return
    attributes = {
        "transformer_serving.call.requests": len(tickets),
        "transformer_serving.call.texts": len(texts),
        "transformer_serving.call.tokens": tokens,
        "transformer_serving.call.padding": len(texts) * length - tokens,
    }
    with _call_of(traces, attributes):
        yield


@contextmanager
def _call_of(traces: Sequence[PassageTrace], attributes: Attributes) -> Iterator[None]:
    """A span below the first one's `infer`, for a span has one parent; linked with the others'."""
    first, *others = traces
    span_id = new_span_id()
    for other in others:
        other.calls.append((first.trace.trace_id, span_id))
    began, failed = time.monotonic(), False
    try:
        with _handing_on(first.trace, span_id):
            yield
    except BaseException as error:
        failed = _is_fault(error)
        raise
    finally:
        first.trace.below(
            "engine call", "client", began, time.monotonic(), attributes, span_id=span_id,
            parent_id=first.infer[1], links=tuple(other.infer for other in others), failed=failed,
        )  # fmt: skip


class TracedStream:
    """One stream of the engine: `opening` until its first answer is here, then until `ended`."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._span_id = new_span_id()
        self._began = time.monotonic()
        self._first: float | None = None

    @contextmanager
    def opening(self) -> Iterator[None]:
        try:
            with _handing_on(self._trace, self._span_id):
                yield
        except BaseException as error:
            self.ended(failed=_is_fault(error))
            raise
        self._first = time.monotonic()

    def ended(self, *, failed: bool) -> None:
        first = self._first
        self._trace.below(
            "engine stream", "client", self._began, time.monotonic(), {}, span_id=self._span_id,
            events=() if first is None else (("first token", first),), failed=failed,
        )  # fmt: skip


def _is_fault(error: BaseException) -> bool:
    """Not where nobody waits any more, or the caller is at fault: the request's span has it so."""
    if isinstance(error, ServingError):
        return error.kind.code in FAULTS
    return not isinstance(error, asyncio.CancelledError)


@contextmanager
def _handing_on(trace: Trace, span_id: str) -> Iterator[None]:
    state = ((STATE_HEADER, trace.state),) if trace.state else ()
    token = handed_on.set(((HEADER, trace.traceparent(span_id)), *state))
    try:
        yield
    finally:
        handed_on.reset(token)
