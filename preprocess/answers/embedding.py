"""sentence-embedding: one vector a text, pooled by the engine or, for raw tokens, here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from contract.endpoint import Endpoint
from contract.errors import ServingError
from preprocess.answers.work import Work
from preprocess.request import Request
from preprocess.rows import Row
from preprocess.tokens import Tokenizer

Array = np.ndarray[Any, Any]

# Each takes one text's token vectors, shape [tokens, width], and gives [width].
POOLINGS: dict[str, Callable[[Array], Array]] = {
    "engine": lambda vector: vector,
    "cls": lambda tokens: tokens[0],
    "mean": lambda tokens: tokens.mean(axis=0),
    "max": lambda tokens: tokens.max(axis=0),
    "lasttoken": lambda tokens: tokens[-1],
}


class SentenceEmbedding:
    """Rows of shape [width] when the graph pools, [tokens, width] otherwise."""

    takes_pairs = False

    def __init__(self, endpoint: Endpoint) -> None:
        if endpoint.embedding is None:
            raise ValueError("endpoint.json has no 'embedding'")
        self._embedding = endpoint.embedding
        self._limits = endpoint.limits
        self._pool = POOLINGS[endpoint.embedding.pooling]

    def read_parameters(self, values: Mapping[str, Any]) -> None:
        if values:
            raise ServingError(
                "invalid_field", "sentence-embedding takes no parameters", field="parameters"
            )

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        return Work(request, tokenizer.encode(request, self._limits))

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        request = work.request
        vectors = np.stack([self._pool(row[0]) for row in rows])[:, : self._embedding.dimensions]
        if self._embedding.normalize:
            lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
            # sentence-transformers' own floor, so that an empty vector stays zero.
            vectors = vectors / np.maximum(lengths, 1e-12)
        vectors = np.ascontiguousarray(vectors, np.float32)
        if request.pipeline_shape:
            return vectors if request.many else vectors[0]
        answers = [{"embedding": vector} for vector in vectors]
        return answers if request.many else answers[0]
