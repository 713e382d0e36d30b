"""What the endpoints of each task answer, in JSON Schema.

One text gives its answer, a list a list of them; the Inference API's shape may wrap either once
more.

Tested by tests/gateway/test_openapi.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from transformer_serving.contract.heads import GENERATION

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "number"}
_WHOLE: Schema = {"type": "integer"}
_NUMBERS: Schema = {"type": "array", "items": _NUMBER}


class _Answer(NamedTuple):
    """`alone` is the smallest piece, which stands in `depths` lists."""

    alone: Schema
    depths: tuple[int, ...]


def answer_schema(task: str) -> Schema:
    """Empty for a task that is not known here: anything."""
    answer = _ANSWERS.get(task)
    if answer is None:
        return {}
    return {"anyOf": [_listed(answer.alone, depth) for depth in answer.depths]}


def _listed(schema: Schema, depth: int) -> Schema:
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def _object(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required)}


_ANSWERS: dict[str, _Answer] = {
    "text-classification": _Answer(_object({"label": _TEXT, "score": _NUMBER}), (0, 1, 2)),
    "token-classification": _Answer(
        _object(
            {"score": _NUMBER, "word": _TEXT, "start": _WHOLE, "end": _WHOLE},
            {"entity": _TEXT, "entity_group": _TEXT, "index": _WHOLE},
        ),
        (1, 2),
    ),
    "question-answering": _Answer(
        _object({"score": _NUMBER, "start": _WHOLE, "end": _WHOLE, "answer": _TEXT}), (0, 1, 2)
    ),
    "fill-mask": _Answer(
        _object({"score": _NUMBER, "token": _WHOLE, "token_str": _TEXT, "sequence": _TEXT}),
        (1, 2, 3),
    ),
    "zero-shot-classification": _Answer(
        _object(
            {"sequence": _TEXT, "labels": {"type": "array", "items": _TEXT}, "scores": _NUMBERS}
        ),
        (0, 1),
    ),
    "feature-extraction": _Answer(_NUMBER, (2, 3, 4)),
    "sentence-embedding": _Answer({"anyOf": [_object({"embedding": _NUMBERS}), _NUMBERS]}, (0, 1)),
    "sentence-similarity": _Answer({"anyOf": [_object({"scores": _NUMBERS}), _NUMBERS]}, (0,)),
    GENERATION: _Answer(
        {"anyOf": [_object({"text": _TEXT}), _object({"generated_text": _TEXT})]}, (0, 1, 2)
    ),
    "rerank": _Answer(_object({"index": _WHOLE, "score": _NUMBER}, {"text": _TEXT}), (1,)),
}
