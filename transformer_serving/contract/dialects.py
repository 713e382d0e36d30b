"""The dialects that requests come in, each with its own way to say an error.

What a dialect reads and writes else is preprocess's (preprocess/dialects/), and where it is spoken
the gateway's (gateway/routes.py); an error may come from either.

Tested by tests/gateway/test_dialects.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.request_context import current_operation

ErrorBody = dict[str, Any]


def _status(error: ServingError) -> int:
    return error.kind.status


@dataclass(frozen=True)
class Dialect:
    """How clients of one protocol are told an error."""

    name: str
    error_body: Callable[[ServingError], ErrorBody]
    status: Callable[[ServingError], int] = _status


def _openai(error: ServingError) -> ErrorBody:
    """As the API reference has it; its clients show `message` and keep the rest."""
    kind = _OPENAI_TYPES.get(error.kind.status)
    if kind is None:
        kind = "invalid_request_error" if error.kind.status < 500 else "server_error"
    inner = {"message": sentence(error), "type": kind, "param": error.field}
    return {"error": {**inner, "code": error.kind.code}}


_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def _tei(error: ServingError) -> ErrorBody:
    """text-embeddings-inference 1.9: ErrorResponse of router/src/lib.rs."""
    return {"error": sentence(error), "error_type": _tei_type(error)}


def _tei_openai(error: ServingError) -> ErrorBody:
    """What its /v1/embeddings says: OpenAICompatErrorResponse of router/src/http/types.rs."""
    return {"message": sentence(error), "code": _tei_status(error), "type": _tei_type(error)}


def _tei_status(error: ServingError) -> int:
    return 400 if _is_empty(error) else _TEI_STATUSES.get(error.kind.code, error.kind.status)


def _tei_type(error: ServingError) -> str:
    return "Empty" if _is_empty(error) else _TEI_TYPES.get(error.kind.code, "Backend")


def _is_empty(error: ServingError) -> bool:
    """Whether a list of texts has none."""
    return error.kind.code == "invalid_field" and error.got == 0 and error.field in _TEI_TEXTS


_TEI_TEXTS = frozenset({"inputs", "input", "texts", "sentences"})
_TEI_TYPES = {
    "malformed_body": "Validation", "invalid_field": "Validation", "too_large": "Validation",
    "impossible": "Tokenizer", "unauthorized": "Validation", "forbidden": "Validation",
    "unknown_endpoint": "Validation", "overloaded": "Overloaded", "unavailable": "Unhealthy",
}  # fmt: skip
# Of its server's StatusCode; a batch or a body that is too large keeps the 413 of its openapi.json.
_TEI_STATUSES = {
    "invalid_field": 422, "overloaded": 429, "engine_failed": 424, "deadline": 424,
    "internal": 424, "refused": 424,
}  # fmt: skip


def _tgi(error: ServingError) -> ErrorBody:
    """text-generation-inference 3: ErrorResponse of router/src/lib.rs."""
    return {"error": sentence(error), "error_type": _TGI_TYPES.get(error.kind.code, "generation")}


def _tgi_status(error: ServingError) -> int:
    return _TGI_STATUSES.get(error.kind.code, error.kind.status)


_TGI_TYPES = {
    "malformed_body": "validation", "invalid_field": "validation", "too_large": "validation",
    "impossible": "validation", "refused": "validation", "unauthorized": "validation",
    "forbidden": "validation", "unknown_endpoint": "validation", "overloaded": "overloaded",
}  # fmt: skip
# Of its server; a body that is too large keeps 413, and an engine that is not there 503.
_TGI_STATUSES = {
    "invalid_field": 422, "overloaded": 429, "engine_failed": 424, "internal": 424,
}  # fmt: skip


def _message(error: ServingError) -> ErrorBody:
    return {"message": sentence(error)}


def _error(error: ServingError) -> ErrorBody:
    return {"error": sentence(error)}


def sentence(error: ServingError) -> str:
    """All that our own body says in fields of its own, in one line."""
    facts = {"field": error.field, "limit": error.limit, "got": error.got}
    told = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    return f"{error.message} ({told})" if told else error.message


def _v2(error: ServingError) -> ErrorBody:
    """The protocol's sentence, and the code, which gRPC's status is found by."""
    return {**_error(error), "code": error.kind.code}


OURS = Dialect("ours", lambda error: dict(error.body()))
DIALECTS = {
    dialect.name: dialect
    for dialect in (
        OURS,
        Dialect("v2", _v2),
        Dialect("v1", _error),
        Dialect("openai", _openai),
        Dialect("tei", _tei, _tei_status),
        Dialect("tei_openai", _tei_openai, _tei_status),
        Dialect("tgi", _tgi, _tgi_status),
        Dialect("cohere", _message),
        Dialect("hf", _error),
    )
}


# What code of before is asked that does not know the operation: a part of its form is missing then.
PLAINER = {"openai.tgi_chat": "openai.chat", "openai.tgi_completions": "openai.completions"}


def dialect_of(operation: str) -> Dialect:
    """Of an operation like `openai.embeddings`."""
    return DIALECTS[operation.partition(".")[0]]


def current_dialect() -> Dialect:
    """The one that the request is in; ours at /serve/NAME."""
    operation = current_operation.get()
    return OURS if operation is None else dialect_of(operation[0])
