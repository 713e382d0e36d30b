"""text-classification: logits to labels and scores, as `transformers.pipeline` gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from contract.endpoint import Endpoint
from contract.errors import ServingError
from contract.fields import kind_of
from preprocess.answers.work import Work
from preprocess.request import Request
from preprocess.rows import Row
from preprocess.tokens import Tokenizer

Array = np.ndarray[Any, Any]


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


@dataclass(frozen=True)
class Parameters:
    """`top_k` None means all labels; `legacy` that the caller did not name top_k."""

    top_k: int | None
    legacy: bool
    function: str


class TextClassification:
    """Rows of logits, shape [labels]."""

    takes_pairs = True

    def __init__(self, endpoint: Endpoint) -> None:
        if endpoint.classification is None:
            raise ValueError("endpoint.json has no 'classification'")
        self._labels = endpoint.classification.labels
        self._limits = endpoint.limits
        self._default_function = endpoint.classification.activation

    def read_parameters(self, values: Mapping[str, Any]) -> Parameters:
        unknown = [name for name in values if name not in ("top_k", "function_to_apply")]
        if unknown:
            raise ServingError(
                "invalid_field",
                "an unknown parameter; allowed are top_k, function_to_apply",
                field="parameters",
            )
        return Parameters(
            top_k=_read_top_k(values.get("top_k", 1)),
            legacy="top_k" not in values,
            function=self._read_function(values.get("function_to_apply")),
        )

    def _read_function(self, value: Any) -> str:
        if value is None:
            return self._default_function
        if not isinstance(value, str) or value not in FUNCTIONS:
            raise ServingError(
                "invalid_field",
                f"parameter 'function_to_apply' must be one of {', '.join(FUNCTIONS)}",
                field="function_to_apply",
                got=kind_of(value),
            )
        return value

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        return Work(request, tokenizer.encode(request, self._limits))

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        request = work.request
        parameters: Parameters = request.parameters
        scores = FUNCTIONS[parameters.function](np.stack([row[0] for row in rows]))
        answers = [self._answer(row, parameters, request.pipeline_shape) for row in scores]
        if request.many:
            return answers
        # The pipeline wraps the answer to a single text in a list unless top_k was named.
        return [answers[0]] if request.pipeline_shape and parameters.legacy else answers[0]

    def _answer(self, scores: Array, parameters: Parameters, pipeline_shape: bool) -> Any:
        only_best = parameters.top_k == 1 and (parameters.legacy or not pipeline_shape)
        if only_best:
            return self._row(int(scores.argmax()), scores)
        order = np.argsort(-scores, kind="stable")[: parameters.top_k]
        return [self._row(int(label), scores) for label in order]

    def _row(self, label: int, scores: Array) -> dict[str, Any]:
        return {"label": self._labels[label], "score": float(scores[label])}


def _read_top_k(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ServingError(
            "invalid_field",
            "parameter 'top_k' must be a whole number from 1, or null for all labels",
            field="top_k",
            limit=1,
            got=kind_of(value),
        )
    return value
