"""The Hugging Face Inference API: POST /hf/NAME, for huggingface_hub's InferenceClient.

Fields and answers are those of the specifications in @huggingface/tasks, where they differ from
what `transformers.pipeline` takes and gives.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from preprocess.dialects.operation import Answered, Asked, Operation, given, read_fields
from preprocess.dialects.tei import cosines
from preprocess.request import wrong
from preprocess.response import Reply, answer_body
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.heads import ENDPOINT_TASKS

# `options` is about loading and caching, which there is none of.
_FIELDS = ("inputs", "parameters", "options")
_BESIDE = ("normalize", "prompt_name", "truncation_direction", "dimensions")
_EMBEDDED = {
    "normalize": "normalize_embeddings",
    "prompt_name": "prompt_name",
    "dimensions": "truncate_dim",
}
# Generated text is read of TGI's body, in our own field.
_NAMES = {"inputs": "text", "ignore_eos_token": "ignore_eos", **_EMBEDDED}


def _as_it_is(answered: Answered) -> Any:
    return answered.answer


def _in_a_list(answered: Answered) -> Any:
    """Of one text, too, a list of answers."""
    return answered.answer if answered.work.request.many else [answered.answer]


def _labels(answered: Answered) -> Any:
    """Rows of label and score instead of two lists."""
    answers = answered.answer if answered.work.request.many else [answered.answer]
    rows = [
        [
            {"label": label, "score": score}
            for label, score in zip(answer["labels"], answer["scores"], strict=True)
        ]
        for answer in answers
    ]
    return rows if answered.work.request.many else rows[0]


class _Way(NamedTuple):
    """What the API does otherwise for a task: parameters that it would give itself, those that may
    stand beside `inputs`, by their names there, and its answer.
    """

    defaults: Mapping[str, Any] = {}
    beside: Mapping[str, str] = {}
    answer: Callable[[Answered], Any] = _as_it_is


_PLAIN = _Way()
_WAYS = {
    "text-classification": _Way({"top_k": None}, answer=_in_a_list),
    "token-classification": _Way({"aggregation_strategy": "simple"}),
    "zero-shot-classification": _Way(answer=_labels),
    # Its feature extraction is that of text-embeddings-inference, as its similarity is.
    "sentence-embedding": _Way({"normalize_embeddings": True}, beside=_EMBEDDED, answer=_in_a_list),
}
# Those whose own parameters stand beside `inputs`.
_VECTORS = ("sentence-embedding", "feature-extraction")


def _read(asked: Asked) -> dict[str, Any]:
    task = asked.endpoint.task
    way = _WAYS.get(task, _PLAIN)
    beside = (*_BESIDE, "encoding_format") if task in _VECTORS else asked.task.form.beside
    body = read_fields(asked.body, (*_FIELDS, "truncate", *beside))
    parameters = body.get("parameters")
    if not isinstance(parameters, dict | None):
        raise wrong("parameters", "an object", parameters)
    # Null, which serializers write for what they leave out, must not undo the API's own default.
    sent = {name: value for name, value in (parameters or {}).items() if value is not None}
    own = {
        **{name: body[name] for name in ("inputs", *asked.task.form.beside) if name in body},
        "parameters": {**way.defaults, **sent, **given(body, way.beside)},
        **given(body, {"truncate": "truncate"}),
    }
    if task in _VECTORS:
        _check_vectors(asked, body, way)
    return own


def _check_vectors(asked: Asked, body: Mapping[str, Any], way: _Way) -> None:
    """Raises ServingError for what this endpoint cannot do."""
    if body.get("encoding_format") not in (None, "float"):
        raise wrong("encoding_format", "'float'", body["encoding_format"])
    for name in ("normalize", "prompt_name", "dimensions"):
        if name not in way.beside and body.get(name) not in (None, False):
            raise wrong(
                name, "left out: the endpoint gives the vectors of single tokens", body[name]
            )
    side, own = body.get("truncation_direction"), asked.endpoint.tokens.truncation_side
    if side is not None and (not isinstance(side, str) or side.lower() != own):
        raise wrong("truncation_direction", f"'{own}', as this model was converted,", side)


def _write(answered: Answered) -> Reply:
    way = _WAYS.get(answered.asked.endpoint.task, _PLAIN)
    return Reply(answer_body(way.answer(answered)))


def _task(endpoint: Endpoint) -> Any:
    return cosines(endpoint) if endpoint.task == "sentence-similarity" else None


OPERATIONS = (
    Operation("hf.inference", frozenset(ENDPOINT_TASKS), _read, _write, _NAMES, _task),
)  # fmt: skip
