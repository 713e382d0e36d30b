"""Cohere's rerank, v1 and v2, and with it Jina's: POST /v1/rerank and /v2/rerank.

Fields and answers are those of its API reference (docs.cohere.com, "Rerank") and of its Python
client 7.3. A text that is too long is cut, as it is there.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from preprocess.answers.ranking import Rerank
from preprocess.dialects import openai
from preprocess.dialects.operation import (
    Answered,
    Asked,
    Operation,
    check_repeated,
    given,
    read_fields,
    read_flag,
)
from preprocess.dialects.tei import squeezed
from preprocess.request import check_count, wrong
from preprocess.response import Reply
from transformer_serving.contract.endpoint import Limits
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.worker.request_context import current_request

# How a document is cut into chunks, and a request's place in a queue: there are neither here.
_WITHOUT_EFFECT = ("max_chunks_per_doc", "max_tokens_per_doc", "priority")
# Fields of a document that are ranked; each is looked for in every document.
_MOST_RANK_FIELDS = 16
_FIELDS = (
    "model", "query", "documents", "top_n", "return_documents", "rank_fields", *_WITHOUT_EFFECT,
)  # fmt: skip


def _read(asked: Asked) -> dict[str, Any]:
    body = read_fields(asked.body, _FIELDS, (openai.CUT,))
    if body.get(openai.CUT) is not None:
        openai.check_cut(body[openai.CUT], asked.endpoint.tokens.max_length)
    for name in _WITHOUT_EFFECT:
        if body.get(name) is not None and type(body[name]) is not int:
            raise wrong(name, "a whole number", body[name])
    check_repeated(body, "model")
    if read_flag(body, "return_documents"):
        _check_given_back(body.get("documents"))
    limits, fields = asked.endpoint.limits, _rank_fields(body.get("rank_fields"))
    return {
        **{name: body[name] for name in ("query",) if name in body},
        "texts": _texts(body.get("documents"), fields, limits),
        "parameters": {**given(body, {"top_n": "top_k"}), **squeezed(asked.endpoint)},
        "truncate": True,
    }


def _check_given_back(documents: Any) -> None:
    """Raises ServingError for what was read and cannot be written again: JSON of some hundred
    levels, and strings that are no UTF-8.
    """
    try:
        orjson.dumps(documents)
    except TypeError:
        raise ServingError(
            "invalid_field",
            "field 'documents' nests too deep, or holds a lone surrogate, to be given back; leave "
            "out return_documents",
            field="documents",
        ) from None


def _rank_fields(value: Any) -> list[str]:
    if value is None:
        return ["text"]
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise wrong("rank_fields", "a list of strings", value)
    if len(value) > _MOST_RANK_FIELDS:
        raise ServingError(
            "too_large", "field 'rank_fields' names too many fields; join their texts yourself",
            field="rank_fields", limit=_MOST_RANK_FIELDS, got=len(value),
        )  # fmt: skip
    return value


def _texts(documents: Any, fields: list[str], limits: Limits) -> list[str]:
    if not isinstance(documents, list):
        raise wrong("documents", "a list of strings or of objects with a text", documents)
    check_count(documents, "documents", limits)
    return [_text(document, fields) for document in documents]


def _text(document: Any, fields: list[str]) -> str:
    if isinstance(document, str):
        return document
    found = [document.get(name) for name in fields] if isinstance(document, dict) else []
    texts = [one for one in found if isinstance(one, str)]
    if len(texts) != len(fields):
        raise wrong(
            "documents",
            "a list of strings or of objects with a string in each of 'rank_fields' (by default "
            "'text')",
            document,
        )
    return "\n".join(texts)


def _write(version: str, answered: Answered) -> Reply:
    body, tokens = answered.asked.body, answered.tokens
    results = [{"index": row["index"], "relevance_score": row["score"]} for row in answered.answer]
    if body.get("return_documents"):
        for result in results:
            document = body["documents"][result["index"]]
            result["document"] = {"text": document} if isinstance(document, str) else document
    context = current_request.get()
    answer = {
        "id": None if context is None else context[0],
        "results": results,
        "meta": {"api_version": {"version": version}},
        # Jina's clients read these.
        "model": body.get("model"),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return Reply(orjson.dumps(answer))


OPERATIONS = tuple(
    Operation(
        f"cohere.rerank_v{version}", frozenset({"rerank"}), _read, partial(_write, version),
        {"documents": "texts", "top_n": "top_k"}, Rerank,
    )
    for version in ("1", "2")
)  # fmt: skip
