"""The table of tasks: what each takes and how the engine's rows become its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from contract.endpoint import Endpoint
from preprocess.answers.classification import TextClassification
from preprocess.answers.embedding import SentenceEmbedding
from preprocess.request import Request


class Task(Protocol):
    """One task: reads its parameters and renders its answer."""

    takes_pairs: bool

    def read_parameters(self, values: Mapping[str, Any]) -> Any:
        """The checked parameters. Raises ServingError `invalid_field`."""

    def render(self, rows: Sequence[np.ndarray[Any, Any]], request: Request) -> Any:
        """The answer as JSON-ready values, from one float32 row a text."""


TASKS: dict[str, Callable[[Endpoint], Task]] = {
    "text-classification": TextClassification,
    "sentence-embedding": SentenceEmbedding,
}
