"""OpenAI's embeddings: POST /v1/embeddings.

Fields and defaults are those of its API reference (platform.openai.com, "Create embeddings"); its
Python client asks for base64 unless told otherwise.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from preprocess.answers.embedding import SentenceEmbedding
from preprocess.dialects.operation import (
    Answered,
    Asked,
    Operation,
    check_repeated,
    given,
    read_fields,
)
from preprocess.request import wrong
from preprocess.response import Reply, answer_body
from preprocess.tensors import Array
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of

_FIELDS = ("input", "model", "encoding_format", "dimensions", "user")
# vLLM's, which its clients send with every request.
CUT = "truncate_prompt_tokens"
_AS_LONG_AS_THE_MODEL = -1
_FORMATS = ("float", "base64")
_TOKEN_IDS = frozenset({int, list})
NAMES = {"input": "text", "dimensions": "truncate_dim"}


def read(asked: Asked) -> dict[str, Any]:
    body = read_fields(asked.body, _FIELDS, (CUT,))
    own = as_ours(body)
    if body.get(CUT) is not None:
        check_cut(body[CUT], asked.endpoint.tokens.max_length)
        own["truncate"] = True
    return own


def check_cut(value: Any, longest: int) -> None:
    """Raises ServingError where it would cut at fewer tokens than the model takes."""
    if type(value) is not int or (value != _AS_LONG_AS_THE_MODEL and value < longest):
        raise ServingError(
            "invalid_field",
            f"field '{CUT}' must be {_AS_LONG_AS_THE_MODEL}, or at least what the model takes: "
            "texts are cut there only",
            field=CUT, limit=longest, got=value if type(value) is int else kind_of(value),
        )  # fmt: skip


def as_ours(body: Mapping[str, Any]) -> dict[str, Any]:
    """Its fields in our terms. Raises ServingError."""
    if body.get("encoding_format") not in (None, *_FORMATS):
        raise wrong("encoding_format", f"one of {', '.join(_FORMATS)}", body["encoding_format"])
    for name in ("model", "user"):
        check_repeated(body, name)
    # Whether one text or several, the answer is a list.
    texts = body.get("input")
    texts = texts if isinstance(texts, list) else [texts]
    refuse_token_ids(texts, "input")
    own: dict[str, Any] = {"text": texts}
    if body.get("dimensions") is not None:
        # The client library's own promise is a vector of length one, whatever was cut off.
        own["parameters"] = {**given(body, {"dimensions": "truncate_dim"}), **NORMALIZED}
    return own


NORMALIZED = {"normalize_embeddings": True}


def refuse_token_ids(texts: list[Any], field: str) -> None:
    """Raises ServingError for a list with token ids in it, which clients send who have OpenAI's
    tokenizer for that of every model.
    """
    if not _TOKEN_IDS.isdisjoint(map(type, texts)):
        raise ServingError(
            "invalid_field",
            f"field '{field}' holds token ids, which may be another tokenizer's, and must hold "
            "texts; langchain's OpenAIEmbeddings sends ids unless check_embedding_ctx_length is "
            "False",
            field=field,
        )


def write(answered: Answered) -> Reply:
    body = answered.asked.body
    as_base64 = body.get("encoding_format") == "base64"
    data = [
        {
            "object": "embedding",
            "index": at,
            "embedding": _base64(row["embedding"]) if as_base64 else row["embedding"],
        }
        for at, row in enumerate(answered.answer)
    ]
    tokens = answered.tokens
    answer = {
        "object": "list",
        "data": data,
        "model": body.get("model") or answered.asked.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Reply(answer_body(answer))


def _base64(vector: Array) -> str:
    """Little-endian float32, as the client unpacks it."""
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()


# A bundle of sentence-similarity computes the same vectors; with a cross-encoder it has none.
TASKS = frozenset({"sentence-embedding", "sentence-similarity"})


def embedding_task(endpoint: Any) -> SentenceEmbedding:
    """Raises ServingError where the endpoint's engine gives no vectors."""
    if endpoint.embedding is None:
        raise ServingError("refused", "the endpoint's model compares texts and makes no vectors")
    return SentenceEmbedding(endpoint)


OPERATIONS = (Operation("openai.embeddings", TASKS, read, write, NAMES, embedding_task),)
