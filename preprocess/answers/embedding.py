"""sentence-embedding and feature-extraction: one vector a text, or one a token.

Tested by tests/preprocess/answers/test_sentence_models.py and
tests/preprocess/answers/test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from preprocess.answers.gist import Gist, directions
from preprocess.answers.work import Work
from preprocess.body_form import BodyForm, TextField
from preprocess.parameters import (
    FLAG,
    Kind,
    Parameter,
    Parameters,
    read_parameters,
    text,
    whole,
)
from preprocess.request import Request
from preprocess.rows import Row
from preprocess.tensors import Array
from preprocess.tokens import Encoded, Tokenizer
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.meanings import Embedding

# The most numbers of an answer, unless the model's own longest text has more: those of 8,192 tokens
# of a model of width 1,024. In JSON each takes 11 bytes, so that they are 92 MB.
MOST_NUMBERS = 1 << 23
# The most that are kept of a request whose texts are pooled here: 268 MB.
MOST_KEPT = 1 << 26
# The pipeline of feature-extraction puts none, and ranking has two of its own.
_WITH_DEFAULT_PROMPT = ("sentence-embedding", "sentence-similarity")
# As JSON so many take about as long as a piece of another task's answer.
_NUMBERS_A_PIECE = 128
# And so many to be pooled.
_POOLED_A_PIECE = 4096

# Each takes one text's token vectors, shape [tokens, width], and gives [width].
POOLINGS: dict[str, Callable[[Array], Array]] = {
    "engine": lambda vector: vector,
    "cls": lambda tokens: tokens[0],
    "mean": lambda tokens: tokens.mean(axis=0),
    "max": lambda tokens: tokens.max(axis=0),
    "lasttoken": lambda tokens: tokens[-1],
}


def embedding_of(endpoint: Endpoint) -> Embedding:
    """The endpoint's embedding. Raises ValueError where a bundle has none."""
    if endpoint.embedding is None:
        raise ValueError("endpoint.json has no 'embedding'")
    return endpoint.embedding


def normalized(vectors: Array) -> Array:
    """Vectors [texts, width] of length one; a vector of zeros stays as it is."""
    # The floor is sentence-transformers' own.
    lengths = np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    scaled: Array = vectors / lengths
    return scaled


def vectors_of(rows: Sequence[Row], embedding: Embedding, dimensions: int | None = None) -> Array:
    """The engine's rows as float32 [texts, dimensions], pooled and normalized as the model says;
    as many dimensions as it keeps where `dimensions` does not say."""
    pool = POOLINGS[embedding.pooling]
    vectors = np.stack([pool(row[0].astype(np.float32, copy=False)) for row in rows])
    if embedding.normalize:
        vectors = normalized(vectors)
    return vectors[:, : dimensions or embedding.dimensions]


def prompted(texts: Sequence[str], prompt: str | None) -> Sequence[str]:
    """The texts with the prompt before each of them."""
    return [prompt + text for text in texts] if prompt else texts


def prompts_of(endpoint: Endpoint) -> Mapping[str, str]:
    """The model's own, by name."""
    return {} if endpoint.embedding is None else endpoint.embedding.prompts


def default_prompt_of(endpoint: Endpoint) -> str | None:
    """The name of the one that the endpoint's own task puts before each text of a request that
    names none.
    """
    embedding = endpoint.embedding
    if embedding is None or endpoint.task not in _WITH_DEFAULT_PROMPT:
        return None
    return embedding.default_prompt


def prompt_name(prompts: Mapping[str, str]) -> Kind:
    """The name of one of the model's prompts."""
    return Kind(
        f"the name of a prompt of this model: {', '.join(prompts) or 'it has none'}",
        lambda value: isinstance(value, str) and value in prompts,
        schema={"type": "string", "enum": sorted(prompts)},
    )


def chosen_prompt(read: Mapping[str, Any], embedding: Embedding) -> str | None:
    """The text of parameter `prompt` or, where there is none, of the one that is named."""
    if read["prompt"] is not None or read["prompt_name"] is None:
        prompt: str | None = read["prompt"]
        return prompt
    return embedding.prompts[read["prompt_name"]]


class NumberRoom(NamedTuple):
    """How many numbers the vectors of a request's tokens may have, each of `width`."""

    width: int
    most: int

    @classmethod
    def of(cls, endpoint: Endpoint, most: int) -> NumberRoom:
        """The model's own longest text always has room."""
        width = max(1, endpoint.outputs[0].dims[-1])
        return cls(width, max(most, width * endpoint.tokens.max_length))

    def numbers(self, encoded: Sequence[Encoded], field: str = "text") -> int:
        """How many they are. Raises ServingError `too_large`, which names the texts' field."""
        numbers = self.width * sum(len(row.ids) for row in encoded)
        if numbers > self.most:
            raise ServingError(
                "too_large",
                "the vectors of all tokens are too many numbers; send fewer texts in a request",
                field=field,
                limit=self.most,
                got=numbers,
            )
        return numbers


class PoolingRoom:
    """What may be pooled of a request in the worker, which of most models the engine does."""

    def __init__(self, endpoint: Endpoint) -> None:
        pools = embedding_of(endpoint).pooling != "engine"
        self._room = NumberRoom.of(endpoint, MOST_KEPT) if pools else None

    def pieces(self, encoded: Sequence[Encoded], field: str = "text") -> int:
        """Of a long answer, those that pooling takes. Raises ServingError `too_large`."""
        if self._room is None:
            return 0
        return self._room.numbers(encoded, field) // _POOLED_A_PIECE


@dataclass(frozen=True)
class EmbeddingParameters(Parameters):
    """`prompt` is the text that goes before each text; `dimensions` None leaves all."""

    prompt: str | None = None
    normalize: bool = False
    dimensions: int | None = None

    def repeated(self, first: Sequence[str], second: Sequence[str]) -> tuple[str, int]:
        return "prompt", len(self.prompt or "") * len(first)


class SentenceEmbedding:
    """Rows of shape [width] when the graph pools, [tokens, width] otherwise."""

    form = BodyForm(TextField("text"))
    tokenizer = Tokenizer

    def __init__(self, endpoint: Endpoint) -> None:
        self._embedding = embedding = embedding_of(endpoint)
        self._limits = endpoint.limits
        self._room = PoolingRoom(endpoint)
        # -1 where it gives any.
        width = endpoint.outputs[0].dims[-1]
        self.parameters = (
            Parameter("prompt_name", prompt_name(embedding.prompts), embedding.default_prompt),
            Parameter("prompt", text(endpoint.limits.max_characters)),
            Parameter("normalize_embeddings", FLAG, False),
            # More than the model keeps by itself too, where the engine gives them.
            Parameter("truncate_dim", whole(1, max(embedding.dimensions, width))),
        )
        self._defaults = self._parameters(read_parameters({}, self.parameters))

    def read_parameters(self, values: Mapping[str, Any]) -> EmbeddingParameters:
        if not values:
            return self._defaults
        return self._parameters(read_parameters(values, self.parameters))

    def _parameters(self, read: Mapping[str, Any]) -> EmbeddingParameters:
        prompt = chosen_prompt(read, self._embedding)
        return EmbeddingParameters(prompt, read["normalize_embeddings"], read["truncate_dim"])

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        texts = prompted(request.texts, request.parameters.prompt)
        encoded = tokenizer.encode(texts, request.truncate, self._limits, request.text_field)
        written = len(encoded) * (request.parameters.dimensions or self._embedding.dimensions)
        pieces = written // _NUMBERS_A_PIECE + self._room.pieces(encoded)
        return Work(request, encoded, pieces=pieces)

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        request = work.request
        parameters: EmbeddingParameters = request.parameters
        vectors = vectors_of(rows, self._embedding, parameters.dimensions)
        if parameters.normalize:
            vectors = normalized(vectors)
        vectors = np.ascontiguousarray(vectors)
        if request.pipeline_shape:
            return vectors if request.many else vectors[0]
        answers = [{"embedding": vector} for vector in vectors]
        return answers if request.many else answers[0]

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """The vector of each text, whole."""
        return directions(normalized(vectors_of(rows, self._embedding)))


@dataclass(frozen=True)
class FeatureParameters(Parameters):
    """`prompt` is the text that goes before each text."""

    truncation: bool | None = None
    prompt: str | None = None

    def repeated(self, first: Sequence[str], second: Sequence[str]) -> tuple[str, int]:
        return "prompt_name", len(self.prompt or "") * len(first)


class FeatureExtraction:
    """Rows of shape [tokens, width], which are the answers."""

    form = BodyForm(TextField("text"))
    tokenizer = Tokenizer
    parameters: tuple[Parameter, ...] = (Parameter("truncation", FLAG),)

    def __init__(self, endpoint: Endpoint) -> None:
        self._limits = endpoint.limits
        self._room = NumberRoom.of(endpoint, MOST_NUMBERS)

    def read_parameters(self, values: Mapping[str, Any]) -> FeatureParameters:
        return FeatureParameters(**read_parameters(values, self.parameters))

    def encode(self, request: Request, tokenizer: Tokenizer) -> Work:
        truncate = request.truncate
        if truncate is None:
            truncate = request.parameters.truncation
        texts = prompted(request.texts, request.parameters.prompt)
        encoded = tokenizer.encode(texts, truncate, self._limits, request.text_field)
        return Work(request, encoded, pieces=self._room.numbers(encoded) // _NUMBERS_A_PIECE)

    def render(self, rows: Sequence[Row], work: Work) -> Any:
        answers = [np.ascontiguousarray(row[0], np.float32) for row in rows]
        if work.request.pipeline_shape:
            # The pipeline leaves the batch axis on.
            answers = [answer[None] for answer in answers]
        return answers if work.request.many else answers[0]

    def gist(self, answer: Any, rows: Sequence[Row], work: Work) -> Gist:
        """The vector of each token of all texts."""
        return directions(normalized(np.concatenate([row[0] for row in rows]).astype(np.float32)))


class PromptedFeatures(FeatureExtraction):
    """The same with one of the model's prompts before each text, as SentenceEmbedding has it."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._prompts = prompts_of(endpoint)
        default = default_prompt_of(endpoint)
        named = Parameter("prompt_name", prompt_name(self._prompts), default)
        self.parameters = (*FeatureExtraction.parameters, named)

    def read_parameters(self, values: Mapping[str, Any]) -> FeatureParameters:
        read = read_parameters(values, self.parameters)
        return FeatureParameters(read["truncation"], self._prompts.get(read["prompt_name"] or ""))
