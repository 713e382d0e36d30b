"""OpenAI's embeddings: POST /v1/embeddings.

Fields and defaults are those of its API reference (platform.openai.com, "Create embeddings"); its
Python client asks for base64 unless told otherwise.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

import base64
from typing import Any

import orjson

from preprocess.dialects.operation import Answered, Asked, Operation
from preprocess.response import Reply
from preprocess.tensors import Array
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.fields import kind_of

_FIELDS = ("input", "model", "encoding_format", "dimensions", "user")
_FORMATS = ("float", "base64")


def _read(asked: Asked) -> dict[str, Any]:
    body = asked.body
    if any(name not in _FIELDS for name in body):
        raise ServingError("invalid_field", f"an unknown field; allowed are {', '.join(_FIELDS)}")
    if body.get("encoding_format") not in (None, *_FORMATS):
        raise ServingError(
            "invalid_field", f"field 'encoding_format' must be one of {', '.join(_FORMATS)}",
            field="encoding_format",
        )  # fmt: skip
    own: dict[str, Any] = {"text": _texts(body.get("input"))}
    dimensions = body.get("dimensions")
    if dimensions is not None:
        # The client library's own promise is a vector of length one, whatever was cut off.
        own["parameters"] = {"truncate_dim": dimensions, "normalize_embeddings": True}
    return own


def _texts(value: Any) -> list[Any]:
    texts = value if isinstance(value, list) else [value]
    if any(isinstance(text, int | list) and not isinstance(text, bool) for text in texts):
        raise ServingError(
            "invalid_field",
            "field 'input' holds token ids of another tokenizer, and must hold texts; "
            "langchain's OpenAIEmbeddings sends them unless check_embedding_ctx_length is False",
            field="input",
        )
    if not all(isinstance(text, str) for text in texts):
        raise ServingError(
            "invalid_field", "field 'input' must be a string or a list of strings", field="input",
            got=kind_of(value),
        )  # fmt: skip
    return texts


def _write(answered: Answered) -> Reply:
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
    answer = {
        "object": "list",
        "data": data,
        "model": body["model"],
        "usage": {"prompt_tokens": answered.tokens, "total_tokens": answered.tokens},
    }
    return Reply(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))


def _base64(vector: Array) -> str:
    """Little-endian float32, as the client unpacks it."""
    return base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode()


OPERATIONS = (Operation("openai.embeddings", frozenset({"sentence-embedding"}), _read, _write),)
