"""What a client of another protocol asks for, as rows that read its body and write its answer.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from preprocess.answers.work import Work
from preprocess.parameters import Parameter, Parameters
from preprocess.request import BodyForm
from preprocess.response import Reply
from transformer_serving.contract.dialects import Dialect, dialect_of
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError


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
        return sum(len(row.ids) for row in self.work.encoded)


@dataclass(frozen=True)
class Operation:
    """One thing that can be asked. `tasks` are those that can answer it, None: all.

    `read` gives a body of our own form. It raises ServingError, as read_body will on what it gives.
    """

    name: str
    tasks: frozenset[str] | None
    read: Callable[[Asked], Any]
    write: Callable[[Answered], Reply]

    @property
    def dialect(self) -> Dialect:
        return dialect_of(self.name)

    def check_task(self, task: str) -> None:
        """Raises ServingError (422) where the endpoint cannot answer this."""
        if self.tasks is not None and task not in self.tasks:
            raise ServingError(
                "impossible",
                f"the endpoint cannot answer this; only those of task "
                f"{' or '.join(sorted(self.tasks))} can",
                got=task,
            )
