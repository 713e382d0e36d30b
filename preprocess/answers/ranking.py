"""sentence-similarity and rerank: one text against many, by vectors or by a cross-encoder.

Tested by tests/preprocess/answers/test_sentence_models.py and
tests/preprocess/answers/test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from preprocess.answers.classification import FUNCTIONS
from preprocess.answers.embedding import (
    PoolingRoom,
    chosen_prompt,
    embedding_of,
    normalized,
    prompt_name,
    prompted,
    vectors_of,
)
from preprocess.answers.gist import Gist, best_first, directions, ranked
from preprocess.answers.work import Work
from preprocess.body_form import BodyForm, TextField
from preprocess.parameters import FLAG, Parameter, Parameters, choice, read_parameters, text, whole
from preprocess.request import Request
from preprocess.rows import Row, logits_of
from preprocess.tensors import Array
from preprocess.tokens import Input, Tokenizer
from transformer_serving.contract.endpoint import Endpoint

# Of a vector [width] and vectors [texts, width]; the greater, the more alike.
SIMILARITIES: dict[str, Callable[[Array, Array], Array]] = {
    "cosine": lambda one, many: normalized(many) @ normalized(one[None])[0],
    "dot": lambda one, many: many @ one,
    "euclidean": lambda one, many: -np.linalg.norm(many - one, axis=-1),
    "manhattan": lambda one, many: -np.abs(many - one).sum(axis=-1),
}


class BiEncoder:
    """Rows of vectors [width]: the one text's, then the others', which are the body's `field`."""

    def __init__(self, endpoint: Endpoint, field: str) -> None:
        self._field = field
        self.embedding = embedding_of(endpoint)
        self._limits = endpoint.limits
        self._room = PoolingRoom(endpoint)
        self._similarity = SIMILARITIES[self.embedding.similarity]

    def encode(
        self, request: Request, tokenizer: Tokenizer, one: str | None, many: str | None
    ) -> Work:
        """`one` and `many` are the prompts before the one text and before the others."""
        texts = [*prompted(request.texts, one), *prompted(request.pairs or (), many)]
        encoded = tokenizer.encode(texts, request.truncate, self._limits)
        return Work(request, encoded, pieces=self._room.pieces(encoded, self._field))

    def scores(self, rows: Sequence[Row]) -> list[float]:
        vectors = vectors_of(rows, self.embedding)
        scores: list[float] = self._similarity(vectors[0], vectors[1:]).tolist()
        return scores


class CrossEncoder:
    """Rows of one logit: of the one text with each of the others."""

    def __init__(self, endpoint: Endpoint) -> None:
        if endpoint.classification is None:
            raise ValueError("endpoint.json has no 'classification'")
        self._limits = endpoint.limits
        self.function = endpoint.classification.activation

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        pairs: list[Input] = [(request.texts[0], text) for text in request.pairs or ()]
        return Work(request, tokenizer.encode(pairs, request.truncate, self._limits))

    def scores(self, rows: Sequence[Row], function: str | None = None) -> list[float]:
        logits = logits_of(rows)
        scores: list[float] = FUNCTIONS[function or self.function](logits)[:, 0].tolist()
        return scores


def _encoder_of(endpoint: Endpoint, form: BodyForm) -> BiEncoder | CrossEncoder:
    if endpoint.embedding is None:
        return CrossEncoder(endpoint)
    return BiEncoder(endpoint, form.names[-1])


@dataclass(frozen=True)
class SimilarityParameters(Parameters):
    """`crosses` that the one text is read beside each of the others."""

    prompt: str | None = None
    crosses: bool = False

    def repeated(self, first: Sequence[str], second: Sequence[str]) -> tuple[str, int]:
        if self.crosses:
            return "source_sentence", len(first[0]) * len(second)
        return "prompt", len(self.prompt or "") * len(second)


class SentenceSimilarity:
    """One score a sentence, in their order."""

    form = BodyForm(TextField("source_sentence", many=False), TextField("sentences", one=False))
    tokenizer = Tokenizer

    def __init__(self, endpoint: Endpoint) -> None:
        self._encoder = _encoder_of(endpoint, self.form)
        self.parameters: tuple[Parameter, ...] = ()
        if isinstance(self._encoder, BiEncoder):
            embedding = self._encoder.embedding
            self.parameters = (
                Parameter("prompt_name", prompt_name(embedding.prompts), embedding.default_prompt),
                Parameter("prompt", text(endpoint.limits.max_characters)),
            )

    def read_parameters(self, values: Mapping[str, Any]) -> SimilarityParameters:
        read = read_parameters(values, self.parameters)
        if not isinstance(self._encoder, BiEncoder):
            return SimilarityParameters(crosses=True)
        return SimilarityParameters(chosen_prompt(read, self._encoder.embedding))

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        if isinstance(self._encoder, BiEncoder):
            prompt = request.parameters.prompt
            return self._encoder.encode(request, tokenizer, prompt, prompt)
        return self._encoder.encode(request, tokenizer)

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        scores = self._encoder.scores(rows)
        # The Inference API answers with the bare scores.
        return scores if work.request.pipeline_shape else {"scores": scores}

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """Each text's vector; of a cross-encoder, which has none, the order of the scores."""
        if isinstance(self._encoder, BiEncoder):
            return directions(normalized(vectors_of(rows, self._encoder.embedding)))
        return ranked([best_first(self._encoder.scores(rows))])


@dataclass(frozen=True)
class RerankParameters(Parameters):
    """`top_k` None leaves all texts in the answer; `function_to_apply` is a cross-encoder's."""

    top_k: int | None
    return_documents: bool
    function_to_apply: str | None = None

    def repeated(self, first: Sequence[str], second: Sequence[str]) -> tuple[str, int]:
        if self.function_to_apply is None:
            return "", 0
        return "query", len(first[0]) * len(second)


class Rerank:
    """The texts by their score against the query, best first."""

    form = BodyForm(TextField("query", many=False), TextField("texts", one=False))
    tokenizer = Tokenizer

    def __init__(self, endpoint: Endpoint) -> None:
        self._encoder = _encoder_of(endpoint, self.form)
        function: tuple[Parameter, ...] = ()
        if isinstance(self._encoder, CrossEncoder):
            # Over the one number of a text softmax is 1: nothing would stand before another.
            named = choice(tuple(name for name in FUNCTIONS if name != "softmax"))
            function = (Parameter("function_to_apply", named, self._encoder.function),)
        self.parameters = (
            Parameter("top_k", whole(1)),
            Parameter("return_documents", FLAG, False),
            *function,
        )

    def read_parameters(self, values: Mapping[str, Any]) -> RerankParameters:
        read = read_parameters(values, self.parameters)
        function = read.get("function_to_apply")
        if function is not None:
            read["function_to_apply"] = function.lower()
        return RerankParameters(**read)

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        if isinstance(self._encoder, BiEncoder):
            # sentence-transformers' encode_query and encode_document. It gives every model these
            # two names, so that neither the default prompt nor 'passage' is ever taken.
            prompts = self._encoder.embedding.prompts
            return self._encoder.encode(
                request, tokenizer, prompts.get("query"), prompts.get("document")
            )
        return self._encoder.encode(request, tokenizer)

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        parameters: RerankParameters = work.request.parameters
        if isinstance(self._encoder, BiEncoder):
            scores = self._encoder.scores(rows)
        else:
            scores = self._encoder.scores(rows, parameters.function_to_apply)
        order = sorted(range(len(scores)), key=lambda at: scores[at], reverse=True)
        answers: list[dict[str, Any]] = [
            {"index": at, "score": scores[at]} for at in order[: parameters.top_k]
        ]
        if parameters.return_documents:
            for answer in answers:
                answer["text"] = (work.request.pairs or ())[answer["index"]]
        return answers

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """The texts' places in their order."""
        return ranked([([one["index"] for one in answer], [one["score"] for one in answer])])
