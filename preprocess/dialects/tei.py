"""text-embeddings-inference: one model a server, so one base address an endpoint, /tei/NAME.

Fields, defaults and answers are those of router/src/http/ in its repository (1.9): vectors are
normalized unless the caller says no, two strings for /predict are a pair, scores are squeezed
unless raw ones are asked for. Its server reads the fields that it knows and passes over others.

Tested by tests/preprocess/test_dialects.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from preprocess.answers.classification import TextClassification
from preprocess.answers.embedding import PromptedFeatures
from preprocess.answers.ranking import Rerank, SentenceSimilarity
from preprocess.dialects import openai
from preprocess.dialects.operation import (
    Answered,
    Asked,
    Operation,
    given,
    read_flag,
    read_object,
)
from preprocess.dialects.token_list import TokenList
from preprocess.request import check_count, wrong
from preprocess.response import Reply, answer_body
from transformer_serving.contract.endpoint import Endpoint
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import TASKS

_EMBEDDED = {"inputs": "text", "prompt_name": "prompt_name", "dimensions": "truncate_dim"}


def _common(asked: Asked, body: Any) -> dict[str, Any]:
    """Whether too long texts are cut: at the end that the model's tokenizer cuts."""
    side = body.get("truncation_direction")
    own = asked.endpoint.tokens.truncation_side
    if side is not None and (not isinstance(side, str) or side.lower() != own):
        raise wrong("truncation_direction", f"'{own}', as this model was converted,", side)
    return given(body, {"truncate": "truncate"})


def _inputs(body: Any) -> list[Any]:
    """One text is a list of one: the answer is a list in either case."""
    value = body.get("inputs")
    texts = value if isinstance(value, list) else [value]
    openai.refuse_token_ids(texts, "inputs")
    return texts


def _embed(asked: Asked) -> dict[str, Any]:
    body = read_object(asked.body)
    parameters = given(body, {"prompt_name": "prompt_name", "dimensions": "truncate_dim"})
    parameters["normalize_embeddings"] = read_flag(body, "normalize", default=True)
    return {"text": _inputs(body), "parameters": parameters, **_common(asked, body)}


def _embed_all(asked: Asked) -> dict[str, Any]:
    body = read_object(asked.body)
    parameters = given(body, {"prompt_name": "prompt_name"})
    return {"text": _inputs(body), "parameters": parameters, **_common(asked, body)}


def _predict(asked: Asked) -> dict[str, Any]:
    body = read_object(asked.body)
    raw, made = read_flag(body, "raw_scores"), asked.endpoint.classification
    parameters: dict[str, Any] = {"top_k": None}
    # Of several labels the model's own function counts.
    if raw or (made is not None and len(made.labels) == 1):
        parameters |= squeezed(asked.endpoint, raw=raw)
    inputs = body.get("inputs")
    if inputs == []:
        check_count(inputs, "inputs", asked.endpoint.limits)
    return {**_sequences(inputs), "parameters": parameters, **_common(asked, body)}


def _sequences(value: Any) -> dict[str, Any]:
    """A text, a pair in a list of its own, or a list of lists of one text or two."""
    if isinstance(value, str):
        return {"text": value}
    rows = value if isinstance(value, list) else []
    if rows and all(isinstance(row, str) for row in rows) and len(rows) <= 2:
        return dict(zip(("text", "text_pair"), rows, strict=False))
    if not rows or not all(isinstance(row, list) and len(row) in (1, 2) for row in rows):
        raise wrong(
            "inputs",
            "a string, a pair [string, string], or a list of [string] and [string, string]",
            value,
        )
    # An empty second text is none.
    return {"text": [row[0] for row in rows], "text_pair": [(*row, "")[1] for row in rows]}


def _rerank(asked: Asked) -> dict[str, Any]:
    body = read_object(asked.body)
    raw = read_flag(body, "raw_scores")
    return {
        **{name: body[name] for name in ("query", "texts") if name in body},
        "parameters": {
            "return_documents": read_flag(body, "return_text"),
            **squeezed(asked.endpoint, raw=raw),
        },
        **_common(asked, body),
    }


def squeezed(endpoint: Endpoint, *, raw: bool = False) -> dict[str, Any]:
    """The parameter for scores of one label, between 0 and 1 whatever the model would do."""
    if endpoint.classification is None:
        return {}
    return {"function_to_apply": "none" if raw else "sigmoid"}


def _similarity(asked: Asked) -> dict[str, Any]:
    body = read_object(asked.body)
    inputs, parameters = body.get("inputs"), body.get("parameters")
    if not isinstance(inputs, dict):
        raise wrong("inputs", "an object with source_sentence and sentences", inputs)
    if parameters is None:
        parameters = {}
    elif not isinstance(parameters, dict):
        raise wrong("parameters", "an object", parameters)
    return {
        **{name: inputs[name] for name in ("source_sentence", "sentences") if name in inputs},
        "parameters": given(parameters, {"prompt_name": "prompt_name"}),
        **_common(asked, parameters),
    }


def _tokenize(asked: Asked) -> dict[str, Any]:
    body = read_object(asked.body)
    parameters = given(
        body, {"prompt_name": "prompt_name", "add_special_tokens": "add_special_tokens"}
    )
    return {"text": _inputs(body), "parameters": parameters}


def _openai(asked: Asked) -> dict[str, Any]:
    own = openai.as_ours(read_object(asked.body))
    own["parameters"] = {**own.get("parameters", {}), **openai.NORMALIZED}
    return own


def _as_it_is(answered: Answered) -> Reply:
    return Reply(answer_body(answered.answer))


def _vectors(answered: Answered) -> Reply:
    return Reply(answer_body([row["embedding"] for row in answered.answer]))


def _scores(answered: Answered) -> Reply:
    return Reply(answer_body(answered.answer["scores"]))


def _token_vectors(endpoint: Endpoint) -> PromptedFeatures:
    if endpoint.head != "token_vectors":
        raise ServingError(
            "refused", "the endpoint's engine pools its vectors and gives none of single tokens"
        )
    return PromptedFeatures(endpoint)


def _no_sparse_vectors(endpoint: Endpoint) -> Any:
    raise ServingError("refused", "the endpoint's model makes no sparse vectors: it is no SPLADE")


def _classification(endpoint: Endpoint) -> TextClassification:
    if endpoint.classification is None:
        raise ServingError("refused", "the endpoint's model compares vectors and has no labels")
    return TextClassification(endpoint)


def cosines(endpoint: Endpoint) -> SentenceSimilarity:
    """Whatever the model's own similarity is."""
    if endpoint.embedding is not None:
        embedding = replace(endpoint.embedding, similarity="cosine")
        endpoint = replace(endpoint, embedding=embedding)
    return SentenceSimilarity(endpoint)


_TEXT = {"inputs": "text"}
_EMBED = Operation(
    "tei.embed", openai.TASKS, _embed, _vectors, {**_EMBEDDED, "normalize": "normalize_embeddings"},
    openai.embedding_task,
)  # fmt: skip
_EMBED_ALL = Operation(
    "tei.embed_all", frozenset({"feature-extraction", "sentence-embedding"}), _embed_all, _as_it_is,
    _TEXT, _token_vectors,
)  # fmt: skip
_PREDICT = Operation(
    "tei.predict", frozenset({"text-classification", "rerank"}), _predict, _as_it_is, _TEXT,
    _classification,
)  # fmt: skip
_RERANK = Operation("tei.rerank", frozenset({"rerank"}), _rerank, _as_it_is, {}, Rerank)
_SIMILARITY = Operation("tei.similarity", openai.TASKS, _similarity, _scores, {}, cosines)
# What its server answers at its root, by the model.
_ROOT = {
    "sentence-embedding": _EMBED,
    "sentence-similarity": _SIMILARITY,
    "feature-extraction": _EMBED_ALL,
    "text-classification": _PREDICT,
    "rerank": _RERANK,
}


def _root_task(endpoint: Endpoint) -> Any:
    row = _ROOT[endpoint.task]
    assert row.task is not None
    return row.task(endpoint)


OPERATIONS = (
    _EMBED,
    _EMBED_ALL,
    Operation("tei.embed_sparse", openai.TASKS, _embed, _vectors, _EMBEDDED, _no_sparse_vectors),
    _PREDICT,
    _RERANK,
    _SIMILARITY,
    Operation(
        "tei.tokenize", frozenset(TASKS), _tokenize, _as_it_is, _TEXT, TokenList, needs_engine=False
    ),
    Operation(
        "tei.root", frozenset(_ROOT), lambda asked: _ROOT[asked.endpoint.task].read(asked),
        lambda done: _ROOT[done.asked.endpoint.task].write(done), _EMBED.names, _root_task,
    ),
    Operation(
        "tei_openai.embeddings", openai.TASKS, _openai, openai.write, openai.NAMES,
        openai.embedding_task,
    ),
)  # fmt: skip
