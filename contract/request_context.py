"""What the gateway knows of a request and preprocess wants to know: its id and its trace."""

from __future__ import annotations

from contextvars import ContextVar

from contract.process_wide import process_wide

# (x-request-id, traceparent or None); None where no gateway stands before the host's app.
Context = tuple[str, str | None]


def _make() -> ContextVar[Context | None]:
    return ContextVar("transformer_serving_request", default=None)


current_request: ContextVar[Context | None] = process_wide("request", _make)


class GoldenBody(dict[str, object]):
    """The body of a health check: it passes admission and is not counted.

    No caller can send one: what comes from JSON is a plain dict. Told by its attribute, because
    packed code has its own copy of this class.
    """

    is_golden = True
