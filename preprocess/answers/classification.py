"""text-classification: logits to labels and scores, as `transformers.pipeline` gives them.

Tested by tests/preprocess/answers/test_equality.py and tests/preprocess/answers/test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from preprocess.answers.gist import Gist, words
from preprocess.answers.work import Work
from preprocess.body_form import BodyForm, TextField
from preprocess.parameters import (
    FLAG,
    Kind,
    Parameter,
    Parameters,
    choice,
    read_parameters,
    whole,
)
from preprocess.request import Request
from preprocess.rows import Row, logits_of
from preprocess.tensors import Array
from preprocess.tokens import Input, Tokenizer
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError

# The most labels of an answer, unless one text has more: 1,024 texts of 1,024 labels, 55 MB of
# JSON.
MOST_LABELS = 1 << 20
# So many take about as long as a piece of another task's answer.
LABELS_A_PIECE = 4


def softmax(logits: Array) -> Array:
    """Along the last axis, shifted by the maximum so that nothing overflows."""
    raised = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scores: Array = raised / raised.sum(axis=-1, keepdims=True)
    return scores


def sigmoid(logits: Array) -> Array:
    """Without overflow for large negative logits."""
    scores: Array = np.exp(-np.logaddexp(0.0, -logits))
    return scores


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "softmax": softmax,
    "sigmoid": sigmoid,
    "none": lambda logits: logits,
}


def _no_shorter_than(length: int) -> Kind:
    """A text is cut at the endpoint's own length, whatever a longer one says."""
    kind = whole(length)
    own = "that of the endpoint, at which texts are cut; a shorter one is convert's --seq-len"
    return replace(kind, wanted=f"{kind.wanted}, {own}")


@dataclass(frozen=True)
class ClassificationParameters(Parameters):
    """`top_k` None means all labels; `legacy` that the caller did not name top_k."""

    top_k: int | None
    legacy: bool
    function: str
    truncation: bool | None = None


class TextClassification:
    """Rows of logits, shape [labels]."""

    form = BodyForm(TextField("text"), TextField("text_pair", required=False))
    tokenizer = Tokenizer

    def __init__(self, endpoint: Endpoint) -> None:
        if endpoint.classification is None:
            raise ValueError("endpoint.json has no 'classification'")
        self._labels = endpoint.classification.labels
        self._limits = endpoint.limits
        activation = endpoint.classification.activation
        self.parameters = (
            Parameter("top_k", whole(1), 1),
            Parameter("function_to_apply", choice(tuple(FUNCTIONS)), activation),
            Parameter("truncation", FLAG),
            Parameter("max_length", _no_shorter_than(endpoint.tokens.max_length)),
            Parameter("return_all_scores", FLAG),
        )
        self._defaults = ClassificationParameters(1, legacy=True, function=activation)

    def read_parameters(self, values: Mapping[str, Any]) -> ClassificationParameters:
        if not values:
            return self._defaults
        read = read_parameters(values, self.parameters)
        every = values["top_k"] is None if "top_k" in values else read["return_all_scores"] is True
        truncation = read["truncation"]
        if truncation is None and read["max_length"] is not None:
            # As a tokenizer of transformers is told to cut by it.
            truncation = True
        return ClassificationParameters(
            top_k=None if every else read["top_k"],
            legacy="top_k" not in values,
            function=read["function_to_apply"].lower(),
            truncation=truncation,
        )

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        written = self._written(request)
        inputs: Sequence[Input] = request.texts
        if request.pairs is not None:
            # As in the reference, an empty second text is none.
            inputs = [
                (text, pair) if pair else text
                for text, pair in zip(request.texts, request.pairs, strict=True)
            ]
        truncate = request.truncate
        if truncate is None:
            truncate = request.parameters.truncation
        encoded = tokenizer.encode(
            inputs, truncate, self._limits, request.text_field if request.pairs is None else None
        )
        return Work(request, encoded, pieces=written // LABELS_A_PIECE)

    def _written(self, request: Request) -> int:
        """How many labels the answer has. Raises ServingError `too_large`."""
        top_k, count = request.parameters.top_k, len(self._labels)
        if top_k is not None:
            count = min(top_k, count)
        written, most = count * len(request.texts), max(MOST_LABELS, count)
        if written > most:
            raise ServingError(
                "too_large",
                "texts times labels make too long an answer; send fewer texts in a request, or ask "
                "for the best labels with top_k",
                field="text",
                limit=most,
                got=written,
            )
        return written

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        request = work.request
        parameters: ClassificationParameters = request.parameters
        logits = logits_of(rows)
        scores = FUNCTIONS[parameters.function](logits)
        answers = [self._answer(row, parameters, request.pipeline_shape) for row in scores]
        if request.many:
            return answers
        # The pipeline wraps the answer to a single string in a list unless top_k was named.
        wraps = request.pipeline_shape and parameters.legacy and not request.objects
        return [answers[0]] if wraps else answers[0]

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """The best label of each text."""
        return words([self._labels[int(row[0].argmax())] for row in rows])

    def _answer(
        self, scores: Array, parameters: ClassificationParameters, pipeline_shape: bool
    ) -> Any:
        only_best = parameters.top_k == 1 and (parameters.legacy or not pipeline_shape)
        if only_best:
            return self._row(int(scores.argmax()), scores)
        order = np.argsort(-scores, kind="stable")[: parameters.top_k]
        return [self._row(int(label), scores) for label in order]

    def _row(self, label: int, scores: Array) -> dict[str, Any]:
        return {"label": self._labels[label], "score": float(scores[label])}
