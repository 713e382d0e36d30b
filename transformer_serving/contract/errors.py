"""The closed set of errors a caller can see, and the one table from error to status."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ErrorKind:
    """One row of the table: what happened, the HTTP status, and whether to come back later."""

    code: str
    status: int
    retry_after_s: int | None
    meaning: str


UNKNOWN_ENDPOINT: Final = "unknown_endpoint"


def _row(code: str, status: int, meaning: str, retry_after_s: int | None = None) -> ErrorKind:
    return ErrorKind(code, status, retry_after_s, meaning)


KINDS: Final[dict[str, ErrorKind]] = {
    kind.code: kind
    for kind in (
        _row("malformed_body", 400, "the body is not a JSON object"),
        _row("invalid_field", 400, "a field is missing, unknown, empty or of the wrong type"),
        _row("unauthorized", 401, "the gateway has keys, and none of them came with the request"),
        _row("forbidden", 403, "the key that came may not ask this"),
        _row(UNKNOWN_ENDPOINT, 404, "no endpoint has this name and version"),
        _row("too_large", 413, "more bytes, texts or tokens than the endpoint accepts"),
        _row("impossible", 422, "well-formed, but the task cannot answer it"),
        _row("refused", 422, "the endpoint's own code or model refused the request"),
        _row("left", 499, "the caller closed the connection; only figures show it"),
        _row("overloaded", 503, "too much work is waiting", retry_after_s=1),
        _row(
            "unavailable",
            503,
            "the engine is not reachable or not ready, or the worker left before the answer",
            retry_after_s=2,
        ),
        _row("deadline", 504, "the answer did not come in time"),
        _row("engine_failed", 502, "the engine failed on this input"),
        _row("internal", 500, "a fault of ours; the log has the reference"),
    )
}


# Those that are no fault of the caller's.
FAULTS: Final = tuple(code for code, kind in KINDS.items() if kind.status >= 500)


class ServingError(Exception):
    """An error the caller sees. The message never repeats request data.

    `field`, `limit` and `got` are sizes and names: `field` is the body's field, `limit` what is
    allowed, `got` what was found (a length, a count, a type name). `retry_after_s` is the kind's
    where it is not known better.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        field: str | None = None,
        limit: int | str | None = None,
        got: int | str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: Final = KINDS[code]
        self.retry_after_s: Final = retry_after_s or self.kind.retry_after_s
        self.message: Final = message
        self.field: Final = field
        self.limit: Final = limit
        self.got: Final = got

    def without_frames(self) -> ServingError:
        """Itself, to be kept or returned: the frames that it went through hold the body, and who
        called them holds the error, so that only the garbage collector would free either.
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self

    def body(self) -> dict[str, str | int | None]:
        """The JSON body of the answer; the keys are always the same."""
        return {
            "code": self.kind.code,
            "message": self.message,
            "field": self.field,
            "limit": self.limit,
            "got": self.got,
        }


def unknown_endpoint() -> ServingError:
    return ServingError(
        UNKNOWN_ENDPOINT, "the endpoint is not known; /openapi.json has those that are"
    )


def too_late() -> ServingError:
    return ServingError("deadline", "the answer did not come before the request's deadline")


def caller_left() -> ServingError:
    return ServingError("left", "the caller closed the connection before its answer")


def worker_leaves() -> ServingError:
    return ServingError(
        "unavailable", "the worker that had the request left before its answer was whole; ask again"
    )


class ContractError(ValueError):
    """A file of a bundle that breaks its contract; shown at the desk and in the controller."""
