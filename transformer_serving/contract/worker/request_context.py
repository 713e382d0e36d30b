"""What the gateway knows of a request and preprocess wants to know: id, trace, caller, arrival,
dialect.

Tested by tests/preprocess/test_passage.py and tests/gateway/test_request_context.py.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from transformer_serving.contract.errors import ServingError, caller_left, worker_leaves
from transformer_serving.contract.worker.process_wide import process_wide

if TYPE_CHECKING:
    from asyncio import Future

# (x-request-id, traceparent or None); None where no gateway stands before the host's app. Where
# traces are on, the traceparent is the gateway's own span's, or says that the request has none.
Context = tuple[str, str | None]


def _make() -> ContextVar[Context | None]:
    return ContextVar("transformer_serving_request", default=None)


current_request: ContextVar[Context | None] = process_wide("request", _make)


def current_request_id() -> str | None:
    """For a line of the log."""
    context = current_request.get()
    return None if context is None else context[0]


def _make_tracestate() -> ContextVar[str | None]:
    return ContextVar("transformer_serving_tracestate", default=None)


# What comes with the traceparent of a request that is traced; None where nothing does.
current_tracestate: ContextVar[str | None] = process_wide("tracestate", _make_tracestate)


def _make_key() -> ContextVar[str | None]:
    return ContextVar("transformer_serving_key", default=None)


# The name of the key that the request came with; None where the gateway has no keys.
current_key: ContextVar[str | None] = process_wide("key", _make_key)


def _make_endpoint() -> ContextVar[str | None]:
    return ContextVar("transformer_serving_endpoint", default=None)


# The endpoint that was asked, NAME or NAME/VERSION; None until one of that name is known to be
# there, so that nothing else of a caller's text comes into the logs.
current_endpoint: ContextVar[str | None] = process_wide("endpoint", _make_endpoint)


def _make_caller() -> ContextVar[Future[None] | None]:
    return ContextVar("transformer_serving_caller", default=None)


# Done when the caller has left: whoever works for it may stop. Not a cancellation, which would end
# the host's and others' code wherever it stands. It has an exception where it is not the caller
# that leaves but the worker, of which `why_nobody_waits` tells. None where nobody watches the
# connection.
current_caller: ContextVar[Future[None] | None] = process_wide("caller", _make_caller)


def why_nobody_waits(caller: Future[None]) -> ServingError:
    """Of a caller that is done."""
    return caller_left() if caller.exception() is None else worker_leaves()


def _make_arrival() -> ContextVar[float | None]:
    return ContextVar("transformer_serving_arrival", default=None)


# When the body was there and read, on time.monotonic's clock: before clearml-serving hands the
# request on, for which it waits while it takes over a change. None where no gateway read it.
current_arrival: ContextVar[float | None] = process_wide("arrival", _make_arrival)


# What is asked in another dialect, like `openai.embeddings`, and the bytes beside its JSON.
Operation = tuple[str, bytes]


def _make_operation() -> ContextVar[Operation | None]:
    return ContextVar("transformer_serving_operation", default=None)


# None at /serve/NAME.
current_operation: ContextVar[Operation | None] = process_wide("operation", _make_operation)

_OTHERS: tuple[ContextVar[Any], ...] = (
    current_tracestate, current_key, current_endpoint, current_caller, current_arrival,
    current_operation,
)  # fmt: skip


def begin_request(context: Context, operation: Operation | None) -> None:
    """Of a request nothing else is known yet, whatever is known where it begins.

    That is in a context of its own under Granian, and may be in an earlier request's under uvicorn:
    of one sent at once with it, or whose body was long.
    """
    # Nothing is set of a request before this is; to set all each time would take a microsecond.
    if current_request.get() is not None:
        for variable in _OTHERS:
            variable.set(None)
    current_request.set(context)
    if operation is not None:
        current_operation.set(operation)


class UntypedBody(bytes):
    """One that looks like JSON, and came without a content type or with another name for JSON's.

    Whether it is an object of the endpoint's own form, only the endpoint knows. Told by its
    attribute, as GoldenBody below.
    """

    is_untyped = True


class GoldenBody(dict[str, object]):
    """The body of a health check: it passes admission and whoever waits, and is not counted.

    No caller can send one: what comes from JSON is a plain dict. Told by its attributes, because
    packed code has its own copy of this class.
    """

    is_golden = True
    goes_first = True


class MirroredBody(dict[str, object]):
    """One that was asked before: it passes admission and is not counted, but waits its turn."""

    is_golden = True


class MirroredText(bytes):
    """The same of a body that is one bare text."""

    is_golden = True

    def __init__(self, body: bytes) -> None:
        self.is_untyped = getattr(body, "is_untyped", False)


def mirrored_body(body: Any) -> MirroredBody | MirroredText | None:
    """A body that was asked before, to be asked again without being counted; None of others."""
    if isinstance(body, bytes):
        return MirroredText(body)
    return MirroredBody(body) if isinstance(body, dict) else None
