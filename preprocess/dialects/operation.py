"""What a client of another protocol asks for, as rows that read its body and write its answer.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from preprocess.answers.work import Work
from preprocess.body_form import BodyForm
from preprocess.parameters import Parameter, Parameters, is_unicode, text
from preprocess.request import check_object, refuse_unknown, wrong
from preprocess.response import Reply
from transformer_serving.contract.dialects import Dialect, dialect_of
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of


class Task(Protocol):
    """What a dialect may know of the endpoint's task; `answers` has one for each."""

    @property
    def form(self) -> BodyForm: ...
    @property
    def parameters(self) -> tuple[Parameter, ...]: ...
    def read_parameters(self, values: Mapping[str, Any]) -> Parameters: ...


class Asked(NamedTuple):
    """A body as it came, with the bytes after its JSON, and the endpoint that is asked.

    `name` and `version` are those that the endpoint is served under.
    """

    body: Any
    binary: bytes
    task: Task
    endpoint: Endpoint
    name: str = ""
    version: str | None = None


class Answered(NamedTuple):
    """The task's answer (values, vectors as float32 arrays) to what was asked, and its `work`."""

    answer: Any
    asked: Asked
    work: Work

    @property
    def tokens(self) -> int:
        """What the engine was given, special tokens included, padding not."""
        return sum([len(row.ids) for row in self.work.encoded])


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked. `tasks` are those that can answer it, None: all.

    `read` gives a body of our own form. It raises ServingError, as read_body will on what it gives.
    `names` are the caller's names of fields and parameters, with ours. `task` makes the task that
    answers where it is not the endpoint's own, from the same engine, None where it is; it raises
    ServingError. What needs no engine does not wait for it either.
    """

    name: str
    tasks: frozenset[str] | None
    read: Callable[[Asked], Any]
    write: Callable[[Answered], Reply]
    names: Mapping[str, str] = field(default_factory=dict)
    task: Callable[[Endpoint], Any] | None = None
    needs_engine: bool = True

    @cached_property
    def _theirs(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for theirs, ours in self.names.items():
            found.setdefault(ours, []).append(theirs)
        return found

    @property
    def dialect(self) -> Dialect:
        return dialect_of(self.name)

    def check_task(self, task: str) -> None:
        """Raises ServingError (422) where the endpoint cannot answer this."""
        if self.tasks is not None and task not in self.tasks:
            raise ServingError(
                "refused",
                f"the endpoint cannot answer this; only those of task "
                f"{' or '.join(sorted(self.tasks))} can",
                got=task,
            )

    def can_be_asked(self, endpoint: Endpoint) -> bool:
        try:
            self.check_task(endpoint.task)
            if self.task is not None:
                self.task(endpoint)
        except ServingError:
            return False
        return True

    def in_their_words(self, error: ServingError, body: Any) -> ServingError:
        """The error with the field by the name that it has in the body as it came, or that the
        caller knows.
        """
        names = self._theirs.get(error.field or "", [])
        if not names or _is_sent(error.field or "", body):
            return error
        theirs = next((name for name in names if _is_sent(name, body)), names[0])
        return ServingError(
            error.kind.code, error.message.replace(f"'{error.field}'", f"'{theirs}'"), field=theirs,
            limit=error.limit, got=error.got, retry_after_s=error.retry_after_s,
        )  # fmt: skip


def _is_sent(name: str, body: Any) -> bool:
    """Whether the body has it, or an object of it that may hold fields of ours; null is none."""
    if not isinstance(body, Mapping):
        return False
    places = (body, body.get("inputs"), body.get("parameters"))
    return any(isinstance(place, Mapping) and place.get(name) is not None for place in places)


def read_object(body: Any) -> Mapping[str, Any]:
    """The body, whatever fields it has. Raises ServingError."""
    check_object(body)
    fields: Mapping[str, Any] = body
    return fields


def read_fields(
    body: Any, allowed: Collection[str], neutral: Collection[str] = ()
) -> Mapping[str, Any]:
    """The body, which has no other fields but null, which serializers write for what they leave
    out. Those of `neutral`, which may only ask for nothing, are no advice to whoever sent another.
    Raises ServingError.
    """
    fields = read_object(body)
    known = (*allowed, *neutral)
    if any(value is None and name not in known for name, value in fields.items()):
        fields = {
            name: fields[name] for name in fields if name in known or fields[name] is not None
        }
    refuse_unknown(fields, allowed, neutral)
    return fields


def given(body: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """What the body has under the caller's names, under ours; null is not given."""
    return {ours: body[name] for name, ours in names.items() if body.get(name) is not None}


def read_flag(body: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Raises ServingError where it is neither true nor false."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(name, "true or false", value)
    return value


def check_repeated(body: Mapping[str, Any], name: str) -> None:
    """Raises ServingError where it is nothing that an answer, which is UTF-8, can repeat.

    Some serializers write null for what they leave out.
    """
    value = body.get(name)
    if value is not None and not (isinstance(value, str) and is_unicode(value)):
        raise wrong(name, "a string without lone surrogates", value)


# An answer in events repeats a name in each of them.
_NAME = text(512)


def check_name(body: Mapping[str, Any], name: str) -> None:
    """Raises ServingError where it is no name that an answer can repeat."""
    value = body.get(name)
    if value is not None and not _NAME.fits(value):
        raise ServingError(
            "invalid_field", f"field '{name}' must be {_NAME.wanted}", field=name,
            limit=_NAME.limit, got=len(value) if isinstance(value, str) else kind_of(value),
        )  # fmt: skip
