"""The table of tasks: what each takes and how the engine's rows become its answer.

Tested by tests/preprocess/answers/test_equality.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from preprocess.answers.classification import TextClassification
from preprocess.answers.embedding import FeatureExtraction, SentenceEmbedding
from preprocess.answers.entities import TokenClassification
from preprocess.answers.fill_mask import FillMask
from preprocess.answers.gist import Gist
from preprocess.answers.question import QuestionAnswering
from preprocess.answers.ranking import Rerank, SentenceSimilarity
from preprocess.answers.work import Work
from preprocess.answers.zero_shot import ZeroShotClassification
from preprocess.body_form import BodyForm
from preprocess.parameters import Parameter, Parameters
from preprocess.request import Request
from preprocess.rows import Row
from transformer_serving.contract.endpoint import Endpoint, Tokens


class Task(Protocol):
    """One task: its body and parameters, the engine's work for them, and its answer."""

    @property
    def form(self) -> BodyForm: ...

    @property
    def parameters(self) -> tuple[Parameter, ...]: ...

    @property
    def tokenizer(self) -> Callable[[bytes, Tokens], Any]:
        """What `encode` wants: whole texts (Tokenizer), or pieces to cut (Windows)."""

    def read_parameters(self, values: Mapping[str, Any]) -> Parameters:
        """The checked parameters. Raises ServingError `invalid_field`, `impossible`."""

    def encode(self, request: Request, tokenizer: Any) -> Work:
        """The rows to compute. Raises ServingError `too_large` or `impossible`."""

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        """The answer as JSON-ready values, from the rows of `work.encoded` in order."""

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """What of an answer is compared with another bundle's to the same request."""


TASKS: dict[str, Callable[[Endpoint], Task]] = {
    "text-classification": TextClassification,
    "token-classification": TokenClassification,
    "question-answering": QuestionAnswering,
    "fill-mask": FillMask,
    "zero-shot-classification": ZeroShotClassification,
    "feature-extraction": FeatureExtraction,
    "sentence-embedding": SentenceEmbedding,
    "sentence-similarity": SentenceSimilarity,
    "rerank": Rerank,
}
