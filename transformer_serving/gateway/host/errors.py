"""What the host's process_request raised, as status and our JSON body.

Status and logging are those of serve_model in clearml_serving.serving.main, but that one fault is
told once a second, and that a call of Triton that found no model or came too late has a status of
its own; the body is ours and, unlike the host's, repeats nothing of the request.

Tested by tests/gateway/test_error_rows.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import orjson
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import Response

from transformer_serving.contract.dialects import current_dialect
from transformer_serving.contract.errors import UNKNOWN_ENDPOINT, ServingError, unknown_endpoint
from transformer_serving.contract.worker.fault_lines import Faults, tell
from transformer_serving.contract.worker.request_context import current_request_id
from transformer_serving.gateway.host.code_files import CodeMissingError

log = logging.getLogger("transformer_serving.gateway")

# Stands where the host's log line would repeat the request.
_WITHHELD = "(not logged)"
_CUDA_TEXTS = ("CUDA out of memory. ", "NVML_SUCCESS == r INTERNAL ASSERT FAILED")

# Of a call of Triton by its gRPC status, which code and message; of any other, a fault of ours.
_AWAY = (
    "unavailable",
    "the engine is not reachable, or does not serve this model; transformer-serving status says "
    "why",
)
_CALLS = {
    "UNAVAILABLE": _AWAY,
    "NOT_FOUND": _AWAY,
    "DEADLINE_EXCEEDED": ("deadline", "the engine's answer did not come in time"),
}

_UNKNOWN = (UNKNOWN_ENDPOINT, unknown_endpoint().message)

ErrorReport = Callable[[Any, BaseException], None]


@dataclass(frozen=True)
class Row:
    """What the host answers to one class of exceptions; `report` writes to the ClearML log.

    The status is that of the code in the table of errors.
    """

    exception: type[BaseException]
    code: str
    message: str
    report: ErrorReport | None


def host_error_table(host: Any) -> tuple[Row, ...]:
    """The `except` clauses of the host's serve_model, in their order, behind our own."""
    missing = CodeMissingError()
    return (
        Row(CodeMissingError, missing.kind.code, missing.message, None),
        Row(
            host.EndpointNotFoundException,
            *_UNKNOWN, None,
        ),
        Row(
            host.EndpointModelLoadException,
            "refused", "the endpoint's model could not be loaded", _report,
        ),
        Row(
            host.EndpointBackendEngineException,
            "refused", "the endpoint's engine refused the request", _report,
        ),
        Row(
            host.ServingInitializationException,
            "internal", "the serving session is not set up", _report,
        ),
        Row(ValueError, "refused", "the endpoint's code refused the request", _report),
        Row(host.AioRpcError, "internal", "the engine's call failed", _report_rpc),
        # The host's own last clause takes Exception, which the panic of a Rust library is not.
        Row(BaseException, "internal", "a fault of the serving code", _report),
    )  # fmt: skip


def host_error_response(
    host: Any, table: tuple[Row, ...], faults: Faults, error: BaseException
) -> Response:
    """To be called while the exception is handled: the host's log line may want its trace."""
    row = next(row for row in table if isinstance(error, row.exception))
    if (known := _of_call(host, error)) is not None:
        row = replace(row, code=known[0], message=known[1])
    if row.report is None:
        return _response(row.code, row.message)
    fault = faults.note(error, is_logged=row.code == "internal")
    if fault.is_told:
        row.report(host, error)
    if isinstance(error, ValueError) and any(text in str(error) for text in _CUDA_TEXTS):
        # As the host does: answer, then end this worker so that a fresh one takes its place.
        restart = BackgroundTask(host.exit_app)
        return _response("internal", "the GPU is out of memory; restarting", restart)
    if row.code != "internal":
        return _response(row.code, row.message)
    tell(log, fault, error, current_request_id())
    told = f"{row.message}, reference {fault.reference}; see the worker's log"
    return _response(row.code, told)


def _of_call(host: Any, error: BaseException | None) -> tuple[str, str] | None:
    """Code and message of a call of Triton that failed in a way that the caller can wait out."""
    if not isinstance(error, host.AioRpcError):
        return None
    return _CALLS.get(error.code().name)


def answer_failed_calls(host: Any) -> None:
    """Of endpoints that the host's own app answers: it has 500 for whatever Triton's engine said.

    What it raised that for stands behind its exception, and is in the ClearML log already.
    """
    usual = host.app.exception_handlers[HTTPException]

    async def answer(request: Any, error: HTTPException) -> Response:
        known = _of_call(host, error.__context__)
        if known is None:
            usual_answer: Response = await usual(request, error)
            return usual_answer
        return _response(*known)

    host.app.add_exception_handler(HTTPException, answer)


def unknown_response() -> Response:
    """For an endpoint that the host does not have."""
    return _response(*_UNKNOWN)


class ErrorResponse(Response):
    """`code` is that of the error, for the figures."""

    def __init__(self, code: str, message: str, background: BackgroundTask | None) -> None:
        error = ServingError(code, message)
        dialect = current_dialect()
        body = orjson.dumps(dialect.error_body(error))
        after = error.retry_after_s
        headers = None if after is None else {"retry-after": str(after)}
        super().__init__(body, dialect.status(error), headers, "application/json", background)
        self.code = code


def _response(code: str, message: str, background: BackgroundTask | None = None) -> Response:
    return ErrorResponse(code, message, background)


def _report(host: Any, error: BaseException) -> None:
    host.session_logger.report_text(host.format_exception(error, _WITHHELD))


def _report_rpc(host: Any, error: Any) -> None:
    code = error.code()
    if code in (host.grpc_aio_verbose_errors or ()):
        text = f"{error} while processing request: {_WITHHELD}"
    elif code not in (host.grpc_aio_ignore_errors or ()):
        text = f"status={code} "
    else:
        return
    host.session_logger.report_text(f"[{host.instance_id}] Exception [AioRpcError] {text}")
