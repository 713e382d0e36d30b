"""Answers as Responses with status and headers, which the host passes through untouched."""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from typing import Any

import orjson
from starlette.responses import Response

from contract.errors import ServingError


class Answer(Response):
    """A Response that also reads like a dict of its scalars.

    With metric logging on, clearml-serving takes `keys()` and items of what postprocess returned.
    """

    media_type = "application/json"

    def __init__(
        self, body: bytes, status: int, headers: dict[str, str], scalars: Mapping[str, Any]
    ) -> None:
        super().__init__(body, status, headers)
        self._scalars = scalars

    def keys(self) -> KeysView[str]:
        return self._scalars.keys()

    def __getitem__(self, name: str) -> Any:
        return self._scalars[name]


def answer_body(answer: Any) -> bytes:
    """JSON; numpy arrays become lists of numbers."""
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def answer_response(answer: Any, body: bytes, headers: dict[str, str]) -> Answer:
    """Status 200; `body` is the answer's JSON."""
    scalars = (
        {name: value for name, value in answer.items() if isinstance(value, str | int | float)}
        if isinstance(answer, dict)
        else {}
    )
    return Answer(body, 200, headers, scalars)


def error_response(error: ServingError, headers: dict[str, str]) -> Answer:
    """The status of the error's kind, and Retry-After where coming back helps."""
    if error.kind.retry_after_s is not None:
        headers["retry-after"] = str(error.kind.retry_after_s)
    return Answer(orjson.dumps(error.body()), error.kind.status, headers, {})
