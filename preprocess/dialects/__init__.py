"""The table of what may be asked in other dialects than ours, and whose turn of it a request is.

A request says what it is by the path that it came to (gateway/routes.py); at /serve/NAME, which
no gateway need stand before, its body may say so itself.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

from typing import Any

from preprocess.answers.work import Work
from preprocess.dialects import cohere, generated, hf, openai, tei, v1, v2
from preprocess.dialects.operation import Answered, Asked, Operation
from preprocess.response import Answer, Reply, answer_body, error_response
from transformer_serving.contract.dialects import OURS
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.request_context import current_operation

OURS_OPERATION = Operation(
    OURS.name, None, lambda asked: asked.body, lambda done: Reply(answer_body(done.answer))
)
_DIALECTS = (openai, tei, cohere, hf, v1, v2, generated)
OPERATIONS = {row.name: row for dialect in _DIALECTS for row in dialect.OPERATIONS}
# At /serve/NAME: whose a body is, and how it is known.
_KNOWN_BY_BODY = ((v2.is_v2, v2.OPERATIONS[0]),)


def needs_engine() -> bool:
    """Whether what the request's path asks for does."""
    named = current_operation.get()
    return named is None or OPERATIONS[named[0]].needs_engine


class Conversation:
    """One request and its answer in the dialect that the caller speaks.

    `task` is who answers; the operation may have one of its own, which `tasks` keeps by its name.
    """

    __slots__ = ("_asked", "_tasks", "operation", "task")

    def __init__(
        self, body: Any, task: Any, endpoint: Endpoint, name: str = "", version: str | None = None,
        tasks: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        named = current_operation.get()
        self.operation = operation_by_body(body) if named is None else OPERATIONS[named[0]]
        binary = b"" if named is None else named[1]
        self._asked = Asked(body, binary, task, endpoint, name, version)
        self.task = task
        self._tasks = {} if tasks is None else tasks

    def read(self) -> Any:
        """The body in our own form, not checked yet. Raises ServingError."""
        operation, asked = self.operation, self._asked
        operation.check_task(asked.endpoint.task)
        if operation.task is not None:
            if operation.name not in self._tasks:
                self._tasks[operation.name] = operation.task(asked.endpoint)
            self.task = self._tasks[operation.name] or self.task
        return operation.read(asked)

    def reply(self, answer: Any, work: Work) -> Reply:
        """The answer as the caller is sent it. Raises ServingError where it cannot be said."""
        return self.operation.write(Answered(answer, self._asked, work))

    def refusal(self, error: ServingError, headers: dict[str, str]) -> Answer:
        error = self.operation.in_their_words(error, self._asked.body)
        return error_response(error, headers, self.operation.dialect)


def operation_by_body(body: Any) -> Operation:
    """Whose a body at /serve/NAME is."""
    return next((row for is_its, row in _KNOWN_BY_BODY if is_its(body)), OURS_OPERATION)


def is_spoken_by(preprocess: Any, operation: Operation) -> bool:
    """Whether another version of this code knows the operation."""
    return operation is OURS_OPERATION or operation.name in getattr(preprocess, "operations", ())
