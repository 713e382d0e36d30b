"""From the body that the host parsed to a Request: checks only, nothing of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from contract.endpoint import Limits
from contract.errors import ServingError
from contract.fields import kind_of

_COMMON = ("parameters", "timeout_ms", "truncate")
_MAX_TIMEOUT_MS = 86_400_000


@dataclass(frozen=True)
class Request:
    """The texts of one request, in order.

    `pairs` holds the second texts, of the same length, where the task takes pairs. `many` tells a
    list from a single text. `pipeline_shape` is set when the body used the Inference API's
    `inputs`: then the answer is what `transformers.pipeline` returns. `truncate` is None when the
    caller did not say.
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    many: bool
    pipeline_shape: bool
    parameters: Any
    timeout_s: float | None
    truncate: bool | None

    @property
    def characters(self) -> int:
        """Of all texts together: what tokenizing will cost."""
        return sum(map(len, self.texts)) + sum(map(len, self.pairs or ()))


class Task(Protocol):
    """What a task says about its body; `answers` has one for each task."""

    takes_pairs: bool

    def read_parameters(self, values: Mapping[str, Any]) -> Any: ...


def read_body(body: Any, task: Task, limits: Limits) -> Request:
    """Check the body against the task and the limits. Raises ServingError (400, 413)."""
    if isinstance(body, bytes | bytearray):
        body = {"text": _decode(bytes(body))}
    if not isinstance(body, Mapping):
        raise ServingError("malformed_body", "the body must be a JSON object", got=kind_of(body))
    pipeline_shape = "inputs" in body
    text_field = "inputs" if pipeline_shape else "text"
    allowed = (text_field, *(("text_pair",) if task.takes_pairs else ()), *_COMMON)
    if any(name not in allowed for name in body):
        raise ServingError("invalid_field", f"an unknown field; allowed are {', '.join(allowed)}")
    texts, many = _texts(body, text_field, limits)
    return Request(
        texts=texts,
        pairs=_pairs(body, texts, many, limits),
        many=many,
        pipeline_shape=pipeline_shape,
        parameters=task.read_parameters(_parameters(body)),
        timeout_s=_timeout(body),
        truncate=_truncate(body),
    )


def _decode(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ServingError("malformed_body", "the raw body is not UTF-8") from None


def _texts(body: Mapping[str, Any], field: str, limits: Limits) -> tuple[tuple[str, ...], bool]:
    if field not in body:
        raise ServingError("invalid_field", f"field '{field}' is missing", field=field)
    value = body[field]
    many = isinstance(value, list)
    texts = value if many else [value]
    if not texts:
        raise ServingError(
            "invalid_field", f"field '{field}' is an empty list", field=field, limit=1, got=0
        )
    if len(texts) > limits.max_texts:
        raise ServingError(
            "too_large",
            f"field '{field}' holds too many texts; send them in several requests",
            field=field,
            limit=limits.max_texts,
            got=len(texts),
        )
    for text in texts:
        _check_text(text, field, limits)
    return tuple(texts), many


def _check_text(text: Any, field: str, limits: Limits) -> None:
    if not isinstance(text, str):
        raise ServingError(
            "invalid_field",
            f"field '{field}' must be a string or a list of strings",
            field=field,
            got=kind_of(text),
        )
    if len(text) > limits.max_characters:
        raise ServingError(
            "too_large",
            f"a text of field '{field}' has too many characters",
            field=field,
            limit=limits.max_characters,
            got=len(text),
        )
    if not text.isascii() and not _is_unicode(text):
        raise ServingError(
            "invalid_field", f"a text of field '{field}' holds a lone surrogate", field=field
        )


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can carry the text; JSON's \\ud800 alone cannot be tokenized."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pairs(
    body: Mapping[str, Any], texts: tuple[str, ...], many: bool, limits: Limits
) -> tuple[str, ...] | None:
    if body.get("text_pair") is None:
        return None
    pairs, pairs_many = _texts(body, "text_pair", limits)
    if pairs_many != many or len(pairs) != len(texts):
        raise ServingError(
            "invalid_field",
            "field 'text_pair' must hold as many texts as the texts it is paired with",
            field="text_pair",
            limit=len(texts),
            got=len(pairs),
        )
    return pairs


def _parameters(body: Mapping[str, Any]) -> Mapping[str, Any]:
    value = body.get("parameters")
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ServingError(
            "invalid_field",
            "field 'parameters' must be an object",
            field="parameters",
            got=kind_of(value),
        )
    return value


def _timeout(body: Mapping[str, Any]) -> float | None:
    value = body.get("timeout_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MAX_TIMEOUT_MS:
        raise ServingError(
            "invalid_field",
            f"field 'timeout_ms' must be whole milliseconds from 1 to {_MAX_TIMEOUT_MS}",
            field="timeout_ms",
            limit=_MAX_TIMEOUT_MS,
            got=kind_of(value),
        )
    return value / 1000


def _truncate(body: Mapping[str, Any]) -> bool | None:
    value = body.get("truncate")
    if value is not None and not isinstance(value, bool):
        raise ServingError(
            "invalid_field",
            "field 'truncate' must be true or false",
            field="truncate",
            got=kind_of(value),
        )
    return value
