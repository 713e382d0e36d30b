"""The span of a request that is traced, from its head to the last byte of its answer.

Tested by tests/gateway/test_traces.py.
"""

from __future__ import annotations

import time

from transformer_serving.contract.worker.fault_lines import FIRST_SERVER_FAULT
from transformer_serving.contract.worker.request_context import (
    current_key,
    current_request,
    current_tracestate,
)
from transformer_serving.contract.worker.trace_context import HEADER, STATE_HEADER
from transformer_serving.contract.worker.tracing import Trace, Tracing
from transformer_serving.gateway.exchange import Exchange
from transformer_serving.gateway.paths_by_setting import named_path
from transformer_serving.gateway.routes import Call

_PARENT, _STATE = HEADER.encode(), STATE_HEADER.encode()
_SERVE = "/serve/{name}"


class RequestTrace:
    """Of one exchange; its attributes hold nothing of what was asked."""

    __slots__ = ("_exchange", "_route", "_trace")

    def __init__(self, trace: Trace, exchange: Exchange, call: Call) -> None:
        self._trace = trace
        self._exchange = exchange
        if call.route is not None:
            self._route = call.route.path
        else:
            self._route = named_path(exchange.path) or _SERVE

    @property
    def trace_id(self) -> str:
        return self._trace.trace_id

    def ended(self, endpoint: str, code: str, status: int) -> None:
        exchange = self._exchange
        attributes: dict[str, str | int] = {
            "http.request.method": exchange.scope["method"],
            "http.route": self._route,
            "http.response.status_code": status,
            "transformer_serving.endpoint": endpoint,
            "transformer_serving.code": code,
            "transformer_serving.request_id": exchange.id.decode("latin-1"),
        }
        if (key := current_key.get()) is not None:
            attributes["transformer_serving.key"] = key
        self._trace.ended(
            f"{exchange.scope['method']} {self._route}", "server", exchange.arrived,
            time.monotonic(), attributes, failed=status >= FIRST_SERVER_FAULT,
        )  # fmt: skip


def trace_of(tracing: Tracing, exchange: Exchange, call: Call) -> RequestTrace | None:
    """None where the request is not traced; whoever works for it in its task sees what it is in."""
    given = exchange.headers.get(_PARENT)
    traceparent = None
    if given is not None and len(_values(exchange, _PARENT)) == 1:
        traceparent = given.decode("latin-1")
    trace, handed_on = tracing.enter(traceparent, lambda: ",".join(_values(exchange, _STATE)))
    if trace is not None or given is not None:
        current_request.set((exchange.id.decode("latin-1"), handed_on))
    if trace is None:
        return None
    if trace.state:
        current_tracestate.set(trace.state)
    return RequestTrace(trace, exchange, call)


def _values(exchange: Exchange, name: bytes) -> list[str]:
    """Every line of that header; `headers` has the last alone."""
    return [
        value.decode("latin-1") for key, value in exchange.scope["headers"] if key.lower() == name
    ]
