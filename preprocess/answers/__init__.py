"""The table of tasks: what each takes and how the engine's rows become its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from contract.endpoint import Endpoint
from preprocess.answers.classification import TextClassification
from preprocess.answers.embedding import SentenceEmbedding
from preprocess.answers.work import Work
from preprocess.request import Request
from preprocess.rows import Row
from preprocess.tokens import Tokenizer


class Task(Protocol):
    """One task: reads its parameters, makes the engine's work, and renders its answer."""

    takes_pairs: bool

    def read_parameters(self, values: Mapping[str, Any]) -> Any:
        """The checked parameters. Raises ServingError `invalid_field`."""

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        """The rows to compute. Raises ServingError `too_large` or `impossible`."""

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        """The answer as JSON-ready values, from the rows of `work.encoded` in order."""


TASKS: dict[str, Callable[[Endpoint], Task]] = {
    "text-classification": TextClassification,
    "sentence-embedding": SentenceEmbedding,
}
