"""Answers as Responses with status and headers, which the host passes through untouched."""

from __future__ import annotations

from collections.abc import KeysView, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import orjson
from starlette.responses import Response

from preprocess.glance import Reach
from preprocess.tensors import Array
from transformer_serving.contract.dialects import OURS, Dialect
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.durations import OK

# Numbers of an array that are written at once, in some milliseconds.
_PART = 1 << 16
# Of a list so many rows, and then as many as make so many bytes by those before; no more than take
# about a millisecond.
_FEW_ROWS = 8
_BYTES = 1 << 18
_ROWS = 1 << 10


class Answer(Response):
    """A Response that also reads like a dict of its answer's scalars, of a list's in columns.

    With metric logging on, clearml-serving takes `keys()` and items of what postprocess returned;
    its statistics count each value of a list.
    """

    media_type = "application/json"

    def __init__(
        self, body: bytes, status: int, headers: dict[str, str], answer: Any = None,
        media_type: str | None = None, code: str = OK,
    ) -> None:  # fmt: skip
        super().__init__(body, status, headers, media_type)
        # What the gateway counts it as, whatever the status is in the caller's dialect.
        self.code = code
        # Of a refusal that others get as well.
        self.reach: Reach | None = None
        # Who made it of which rows, where another bundle's answer may be compared with it.
        self.made_by: tuple[Any, Sequence[Any], Any] | None = None
        self._answer = answer

    @cached_property
    def _scalars(self) -> Mapping[str, Any]:
        if isinstance(self._answer, dict):
            return _scalars_of(self._answer)
        if not isinstance(self._answer, list) or not self._answer:
            return {}
        if not all(isinstance(row, dict) for row in self._answer):
            return {}
        rows = [_scalars_of(row) for row in self._answer]
        names = [name for name in rows[0] if all(name in row for row in rows)]
        return {name: [row[name] for row in rows] for name in names}

    def gist(self) -> Any:
        """What of it is compared with another bundle's, None where nothing is."""
        if self.made_by is None:
            return None
        task, rows, work = self.made_by
        return task.gist(self._answer, rows, work) if rows else None

    def keys(self) -> KeysView[str]:
        return self._scalars.keys()

    def __getitem__(self, name: str) -> Any:
        return self._scalars[name]


def _scalars_of(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if isinstance(value, str | int | float)}


def answer_body(answer: Any) -> bytes:
    """JSON; numpy arrays become lists of numbers.

    Writing holds the interpreter's lock, so long arrays and lists are written in parts: between two
    of them other threads have their turn.
    """
    if type(answer) is list and (len(answer) > _FEW_ROWS or _has_many(answer)):
        return _of_list(answer)
    return orjson.dumps(answer, _as_fragment)


def _has_many(rows: list[Any]) -> bool:
    """Whether a list in the list has more rows than are written without a look at their length."""
    has_lists = bool(rows) and type(rows[0]) is list
    return has_lists and max([len(row) for row in rows if type(row) is list]) > _FEW_ROWS


def _of_list(rows: list[Any]) -> bytes:
    if _has_many(rows):
        return b"[%b]" % b",".join([answer_body(row) for row in rows])
    most = _ROWS // _FEW_ROWS if type(rows[0]) is list else _ROWS
    parts, at, count = [], 0, _FEW_ROWS
    while at < len(rows):
        part = orjson.dumps(rows[at : at + count], _as_fragment)[1:-1]
        parts.append(part)
        at += count
        count = max(1, min(most, count * _BYTES // len(part)))
    return b"[%b]" % b",".join(parts)


def _as_fragment(value: Any) -> orjson.Fragment:
    return orjson.Fragment(_of_numpy(value))


def _of_numpy(value: Any) -> bytes:
    """Raises TypeError for what is none of numpy's."""
    if not isinstance(value, np.ndarray) or value.size <= _PART:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    at_once = _PART * len(value) // value.size
    if at_once:
        slices = (value[at : at + at_once] for at in range(0, len(value), at_once))
        parts = map(_inside, slices)
    else:
        parts = map(_of_numpy, value)
    return b"[%b]" % b",".join(parts)


def _inside(array: Array) -> bytes:
    """Without the brackets around it."""
    return _of_numpy(array)[1:-1]


class Reply(NamedTuple):
    """What the caller is sent of an answer, and headers beside our own."""

    body: bytes
    media_type: str = Answer.media_type
    headers: Mapping[str, str] = {}


def answer_response(answer: Any, reply: Reply, headers: dict[str, str]) -> Answer:
    """Status 200."""
    headers |= reply.headers
    return Answer(reply.body, 200, headers, answer, reply.media_type)


def error_response(error: ServingError, headers: dict[str, str], dialect: Dialect = OURS) -> Answer:
    """The status of the error's kind, and Retry-After where coming back helps."""
    if error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    body, status = orjson.dumps(dialect.error_body(error)), dialect.status(error)
    return Answer(body, status, headers, code=error.kind.code)
