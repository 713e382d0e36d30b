"""Bodies and answers of other protocols, without a server; tests/clients asks with clients."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings, strategies as st

from preprocess.answers import TASKS
from preprocess.card import card_of
from preprocess.dialects import OPERATIONS
from tests.preprocess.speaking import LABELS, WIDTH, Speaker, endpoint_of, speaker
from transformer_serving.contract.dialects import DIALECTS, dialect_of
from transformer_serving.contract.errors import KINDS, ServingError
from transformer_serving.contract.heads import ENDPOINT_TASKS, GENERATION
from transformer_serving.desk.export.endpoint_json import limits_of

TEA, RAIN = "a kettle of tea", "rain fell on the roof"
TEXTS = [TEA, RAIN]
# More levels than orjson writes, and fewer than it reads.
DEEP = orjson.loads("[" * 300 + "]" * 300)
# What JSON may say and UTF-8 cannot.
LONE = "\ud800"
# A body that our own form takes, of each task.
OURS: dict[str, dict[str, Any]] = {
    "text-classification": {"text": TEA},
    "token-classification": {"text": TEA},
    "question-answering": {"question": "what fell", "context": RAIN},
    "fill-mask": {"text": "a kettle of [MASK]"},
    "zero-shot-classification": {"text": TEA, "candidate_labels": ["tea", "rain"]},
    "feature-extraction": {"text": TEA},
    "sentence-embedding": {"text": TEA},
    "sentence-similarity": {"source_sentence": TEA, "sentences": TEXTS},
    "rerank": {"query": TEA, "texts": TEXTS},
}
SPEAKERS = {task: speaker(task) for task in TASKS}


def refusal(task: str, operation: str, body: Any) -> ServingError:
    with pytest.raises(ServingError) as caught:
        SPEAKERS[task].ask(operation, body)
    return caught.value


def vectors(texts: list[str], **parameters: Any) -> list[list[float]]:
    body = {"text": texts, "parameters": parameters}
    return [row["embedding"] for row in SPEAKERS["sentence-embedding"].ask(None, body)]


def test_every_operation_has_its_dialect_and_some_task() -> None:
    for name, row in OPERATIONS.items():
        assert row.name == name
        assert row.dialect is DIALECTS[name.partition(".")[0]]
        assert row.tasks is None or row.tasks <= set(ENDPOINT_TASKS)
        answering = [task for task in TASKS if row.can_be_asked(endpoint_of(task))]
        # The others are text-generation's, whose bundles have a way of their own.
        assert bool(answering) == (name != "tei.embed_sparse" and row.tasks != {GENERATION})


STRANGE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["tea", "", "\ud800", "x" * 500]),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
FIELDS = st.sampled_from(
    [
        "input", "inputs", "text", "texts", "text_pair", "query", "documents", "instances",
        "parameters", "model", "truncate", "truncation_direction", "normalize", "dimensions",
        "prompt_name", "raw_scores", "return_text", "return_documents", "top_n", "rank_fields",
        "encoding_format", "user", "add_special_tokens", "source_sentence", "sentences", "question",
        "context", "options", "candidate_labels", "max_chunks_per_doc",
    ]
)  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
@given(st.data())
@settings(max_examples=60)
def test_no_body_is_too_strange(task: str, data: Any) -> None:
    operation = data.draw(st.sampled_from(sorted(OPERATIONS)))
    body = data.draw(STRANGE | st.dictionaries(FIELDS, STRANGE, max_size=5))
    refused: list[ServingError] = []
    try:
        SPEAKERS[task].ask(operation, body)
    except ServingError as error:
        refused.append(error)
    for one in refused:
        for dialect in DIALECTS.values():
            assert 400 <= dialect.status(one) < 600
            assert dialect.error_body(one)


# OpenAI


def test_openai_gives_vectors_in_order_with_true_counts() -> None:
    speaker = SPEAKERS["sentence-embedding"]
    answer = speaker.ask("openai.embeddings", {"model": "m", "input": TEXTS})
    assert [row["embedding"] for row in answer["data"]] == vectors(TEXTS)
    # [CLS] and [SEP] around each.
    tokens = [len(speaker.tokenizer.library.encode(text).ids) for text in TEXTS]
    assert answer["usage"] == {"prompt_tokens": sum(tokens), "total_tokens": sum(tokens)}
    one = speaker.ask("openai.embeddings", {"model": "m", "input": TEA, "user": "u"})
    assert one["data"] == answer["data"][:1]


def test_openai_takes_as_many_texts_as_openai() -> None:
    limits = dataclasses.asdict(limits_of("sentence-embedding"))
    many = speaker("sentence-embedding", limits=limits)
    answer = many.ask("openai.embeddings", {"model": "m", "input": [TEA] * 2048})
    assert len(answer["data"]) == 2048
    with pytest.raises(ServingError) as refused:
        many.ask("openai.embeddings", {"model": "m", "input": [TEA] * 2049})
    assert (refused.value.kind.code, refused.value.limit) == ("too_large", 2048)


def test_openai_packs_float32_in_base64() -> None:
    body = {"model": "m", "input": TEA, "encoding_format": "base64"}
    answer = SPEAKERS["sentence-embedding"].ask("openai.embeddings", body)
    found = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(found, vectors([TEA])[0], rtol=1e-6)


@pytest.mark.parametrize("most", [-1, 24, 1_000_000])
def test_openai_cuts_texts_where_vllms_clients_ask_for_it(most: int) -> None:
    uncut = SPEAKERS["sentence-embedding"]
    body = {"model": "m", "input": "tea " * 30}
    with pytest.raises(ServingError) as refused:
        uncut.ask("openai.embeddings", body)
    assert refused.value.kind.code == "too_large"
    cut = uncut.ask("openai.embeddings", {**body, "truncate_prompt_tokens": most})
    assert cut["usage"]["prompt_tokens"] == uncut.endpoint.tokens.max_length


@pytest.mark.parametrize(
    ("operation", "task", "body"),
    [
        ("openai.embeddings", "sentence-embedding", {"input": TEA}),
        ("cohere.rerank_v2", "rerank", {"query": TEA, "documents": TEXTS}),
        ("hf.inference", "text-classification", {"inputs": TEA}),
        ("v1.predict", "text-classification", {"instances": [TEA]}),
        ("v1.predict", "text-classification", {"instances": [{"text": TEA, "nothing": None}]}),
    ],
)
def test_null_of_a_field_that_is_not_known_is_not_sent(
    operation: str, task: str, body: dict[str, Any]
) -> None:
    asked = SPEAKERS[task]
    wanted, told = (asked.ask(operation, sent) for sent in (body, {**body, "nothing": None}))
    for answer in (wanted, told):
        if isinstance(answer, dict):
            answer.pop("id", None)
    assert told == wanted
    assert refusal(task, operation, {**body, "nothing": 0}).kind.code == "invalid_field"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        *(
            ({"input": TEA, "truncate_prompt_tokens": most}, "truncate_prompt_tokens")
            for most in (-2, 0, 23, True, 24.0, "24")
        ),
        ({"input": []}, "input"),
        ({"input": [1, 2]}, "input"),
        ({"input": [[1, 2]]}, "input"),
        ({"input": TEA, "dimensions": WIDTH + 1}, "dimensions"),
        ({"input": TEA, "dimensions": "8"}, "dimensions"),
        ({"input": TEA, "encoding_format": "hex"}, "encoding_format"),
        ({"input": TEA, "user": 7}, "user"),
        ({"input": TEA, "model": DEEP}, "model"),
        ({"input": TEA, "model": LONE}, "model"),
        ({"input": ["x"] * 11}, "input"),
    ],
)
def test_openai_is_told_its_own_field(body: dict[str, Any], field: str) -> None:
    error = refusal("sentence-embedding", "openai.embeddings", {"model": "m", **body})
    assert error.field == field
    assert f"'{field}'" in error.message
    told = dialect_of("openai.embeddings").error_body(error)
    assert told["error"]["param"] == field


# text-embeddings-inference


@pytest.mark.parametrize("inputs", [TEA, [TEA], TEXTS])
def test_tei_normalizes_unless_told_not_to(inputs: Any) -> None:
    speaker = SPEAKERS["sentence-embedding"]
    texts = inputs if isinstance(inputs, list) else [inputs]
    assert speaker.ask("tei.embed", {"inputs": inputs}) == vectors(texts, normalize_embeddings=True)
    plain = {"inputs": inputs, "normalize": False, "truncation_direction": "Right"}
    assert speaker.ask("tei.embed", plain) == vectors(texts)
    assert speaker.ask("tei.root", {"inputs": inputs}) == speaker.ask(
        "tei.embed", {"inputs": inputs}
    )


def test_tei_cuts_texts_dimensions_and_puts_prompts() -> None:
    speaker = SPEAKERS["sentence-embedding"]
    body = {"inputs": "tea " * 30, "truncate": True, "dimensions": 3, "prompt_name": "query"}
    assert np.array(speaker.ask("tei.embed", body)).shape == (1, 3)
    assert refusal("sentence-embedding", "tei.embed", {**body, "truncate": False}).kind.code == (
        "too_large"
    )
    assert refusal("sentence-embedding", "tei.embed", {**body, "prompt_name": "x"}).field == (
        "prompt_name"
    )
    left = {"inputs": TEA, "truncation_direction": "left"}
    assert refusal("sentence-embedding", "tei.embed", left).field == "truncation_direction"


def test_tei_gives_the_vectors_of_tokens() -> None:
    speaker = SPEAKERS["feature-extraction"]
    found = speaker.ask("tei.embed_all", {"inputs": TEA})
    assert found == [speaker.ask(None, {"text": TEA})]
    assert speaker.ask("tei.root", {"inputs": TEA}) == found
    # Where the engine pools, there are none.
    error = refusal("sentence-embedding", "tei.embed_all", {"inputs": TEA})
    assert dialect_of("tei.embed_all").status(error) == 424


def with_token_vectors(prompt: str, default: str | None = None) -> Speaker:
    """Sentence-embedding whose engine leaves the pooling to the worker."""
    embedding = {
        "pooling": "mean", "normalize": False, "dimensions": WIDTH, "similarity": "dot",
        "prompts": {"query": prompt, "document": ""}, "default_prompt": default,
    }  # fmt: skip
    return speaker("sentence-embedding", head="token_vectors", embedding=embedding)


def test_tei_puts_a_prompt_before_the_vectors_of_tokens() -> None:
    speaker = with_token_vectors("tea ")
    found = speaker.ask("tei.embed_all", {"inputs": TEXTS, "prompt_name": "query"})
    assert found == speaker.ask("tei.embed_all", {"inputs": [f"tea {text}" for text in TEXTS]})
    assert found != speaker.ask("tei.embed_all", {"inputs": TEXTS})
    with pytest.raises(ServingError) as refused:
        speaker.ask("tei.embed_all", {"inputs": TEXTS, "prompt_name": "nobody"})
    assert refused.value.field == "prompt_name"


def test_a_long_prompt_counts_with_the_tokens_of_each_text() -> None:
    speaker = with_token_vectors("tea " * 60)
    body = {"inputs": ["tea"] * 10, "prompt_name": "query", "truncate": True}
    with pytest.raises(ServingError) as refused:
        speaker.ask("tei.embed_all", body)
    assert (refused.value.kind.code, refused.value.field) == ("too_large", "prompt_name")
    assert refused.value.got == 2400


def test_tei_has_no_prompts_of_a_model_without_them() -> None:
    endpoint = dataclasses.replace(endpoint_of("feature-extraction"), embedding=None)
    for operation in ("tei.embed_all", "tei.tokenize"):
        with pytest.raises(ServingError, match="it has none") as refused:
            Speaker(endpoint).ask(operation, {"inputs": TEA, "prompt_name": "query"})
        assert refused.value.field == "prompt_name"
        assert Speaker(endpoint).ask(operation, {"inputs": TEA})


def test_tei_predicts_texts_pairs_and_batches_of_both() -> None:
    speaker = SPEAKERS["text-classification"]
    every = {"parameters": {"top_k": len(LABELS)}}
    one, other = (speaker.ask(None, {"text": [text], **every})[0] for text in TEXTS)
    pair = speaker.ask(None, {"text": TEA, "text_pair": RAIN, **every})
    predict = {
        name: speaker.ask("tei.predict", {"inputs": inputs})
        for name, inputs in {
            "a text": TEA, "alone": [TEA], "a pair": TEXTS, "texts": [[TEA], [RAIN]],
            "mixed": [[TEA], TEXTS],
        }.items()
    }  # fmt: skip
    assert predict["a text"] == predict["alone"] == one
    assert predict["a pair"] == pair
    assert predict["texts"] == [one, other]
    assert predict["mixed"] == [one, pair]
    raw = speaker.ask("tei.predict", {"inputs": TEA, "raw_scores": True})
    parameters = {"function_to_apply": "none", "top_k": len(LABELS)}
    assert raw == speaker.ask(None, {"text": [TEA], "parameters": parameters})[0]


@pytest.mark.parametrize("task", ["text-classification", "rerank"])
@pytest.mark.parametrize(
    ("problem_type", "activation"),
    [("regression", "none"), ("single_label", "none"), ("multi_label", "sigmoid")],
)
def test_tei_predicts_one_label_between_nought_and_one_unless_raw(
    task: str, problem_type: str, activation: str
) -> None:
    one = {"labels": LABELS[:1], "problem_type": problem_type, "activation": activation}
    speaker = Speaker(endpoint_of(task, classification=one))
    body = {"inputs": [[TEA], [RAIN], TEXTS]}
    raw = speaker.ask("tei.predict", {**body, "raw_scores": True})
    squeezed = speaker.ask("tei.predict", body)
    logits = [row["score"] for [row] in raw]
    assert len(set(logits)) == 3
    for [row], logit in zip(squeezed, logits, strict=True):
        assert row == {"label": LABELS[0], "score": pytest.approx(1 / (1 + np.exp(-logit)))}
    if task == "text-classification":
        assert speaker.ask("tei.root", body) == squeezed


@pytest.mark.parametrize(
    "inputs", [None, [[]], ["a", "b", "c"], [["a", "b", "c"]], ["a", ["b"]], [["a"], "b"], [1]]
)
def test_tei_predicts_nothing_else(inputs: Any) -> None:
    error = refusal("text-classification", "tei.predict", {"inputs": inputs})
    assert dialect_of("tei.predict").status(error) == 422
    assert error.field == "inputs"


def test_tei_ranks_between_nought_and_one_unless_raw() -> None:
    linear = {"labels": LABELS[:1], "problem_type": "single_label", "activation": "none"}
    speaker = Speaker(endpoint_of("rerank", classification=linear))
    body = {"query": TEA, "texts": TEXTS}
    raw = speaker.ask("tei.rerank", {**body, "raw_scores": True, "return_text": True})
    assert raw == speaker.ask(None, {**body, "parameters": {"return_documents": True}})
    ranks = speaker.ask("tei.rerank", body)
    for rank, row in zip(ranks, raw, strict=True):
        assert rank == {
            "index": row["index"],
            "score": pytest.approx(1 / (1 + np.exp(-row["score"]))),
        }
    assert speaker.ask("tei.root", body) == ranks
    # A model of vectors has no other scores than its own.
    by_vectors = Speaker(endpoint_of("rerank", head="vector"))
    assert by_vectors.ask("tei.rerank", body) == by_vectors.ask(None, body)


def test_teis_reranking_takes_what_litellm_sends() -> None:
    """Of rerank(..., top_n=1): it cuts nothing, there and here."""
    speaker = SPEAKERS["rerank"]
    own = {"query": TEA, "texts": TEXTS, "return_text": True}
    sent = {"raw_scores": False, "truncate": False, "truncation_direction": "Right", "top_n": 1}
    assert speaker.ask("tei.rerank", {**sent, **own}) == speaker.ask("tei.rerank", own)


STATED = {"source_sentence": TEA, "sentences": TEXTS}


@pytest.mark.parametrize(
    ("task", "operation", "body"),
    [
        ("sentence-embedding", "tei.embed", {"inputs": TEA}),
        ("sentence-embedding", "tei.root", {"inputs": TEA}),
        ("sentence-embedding", "tei_openai.embeddings", {"input": TEA}),
        ("feature-extraction", "tei.embed_all", {"inputs": TEA}),
        ("text-classification", "tei.predict", {"inputs": TEA}),
        ("rerank", "tei.rerank", {"query": TEA, "texts": TEXTS}),
        ("sentence-similarity", "tei.similarity", {"inputs": STATED, "parameters": {}}),
        ("fill-mask", "tei.tokenize", {"inputs": TEA}),
    ],
)
def test_tei_passes_over_what_it_does_not_know(
    task: str, operation: str, body: dict[str, Any]
) -> None:
    speaker = SPEAKERS[task]
    # Fields of our own that are none of its server's, too.
    more = {"nothing": [1], "timeout_ms": "soon", "text": 1}
    inner = {name: {**one, "nothing": 1} for name, one in body.items() if isinstance(one, dict)}
    assert speaker.ask(operation, {**body, **more, **inner}) == speaker.ask(operation, body)


def test_tei_compares_by_cosine_whatever_the_model_does() -> None:
    speaker = SPEAKERS["sentence-similarity"]
    inputs = {"source_sentence": TEA, "sentences": TEXTS}
    scores = speaker.ask("tei.similarity", {"inputs": inputs, "parameters": {"truncate": True}})
    assert scores == [pytest.approx(1), pytest.approx(scores[1])]
    one, two = np.array(vectors(TEXTS, normalize_embeddings=True))
    assert scores[1] == pytest.approx(float(one @ two), abs=1e-6)
    # The vectors of sentence-embedding can be compared, too.
    assert SPEAKERS["sentence-embedding"].ask("tei.similarity", {"inputs": inputs}) == scores
    assert speaker.ask("tei.root", {"inputs": inputs}) == scores
    for body in ({}, {"inputs": TEA}, {"inputs": inputs, "parameters": [1]}):
        assert refusal("sentence-similarity", "tei.similarity", body).field in (
            "inputs", "parameters",
        )  # fmt: skip


@pytest.mark.parametrize("task", ["sentence-embedding", "question-answering"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_tei_lists_tokens_however_many(task: str, side: str) -> None:
    endpoint = endpoint_of(task)
    tokens = dataclasses.replace(endpoint.tokens, truncation_side=side)
    speaker = Speaker(dataclasses.replace(endpoint, tokens=tokens))
    text = "tea and rain " * 10
    [found] = speaker.ask("tei.tokenize", {"inputs": text})
    assert [row["special"] for row in (found[0], found[-1])] == [True, True]
    inner = found[1:-1]
    assert len(inner) == 30
    assert [text[row["start"] : row["stop"]] for row in inner] == [row["text"] for row in inner]
    assert "".join(row["text"] for row in inner) == text.replace(" ", "")
    [bare] = speaker.ask("tei.tokenize", {"inputs": [text], "add_special_tokens": False})
    assert bare == inner
    many = refusal(task, "tei.tokenize", {"inputs": ["tea and rain " * 15] * 9})
    assert many.kind.code == "too_large"
    assert refusal(task, "tei.tokenize", {"inputs": []}).got == 0


@pytest.mark.parametrize("text", ["tea für rain", "茶 tea für rain", "\U0001f375tea", "tea"])
def test_teis_tokens_are_at_places_in_utf_8(text: str) -> None:
    [found] = SPEAKERS["fill-mask"].ask(
        "tei.tokenize", {"inputs": text, "add_special_tokens": False}
    )
    raw = text.encode()
    assert [raw[row["start"] : row["stop"]].decode() for row in found] == [
        row["text"] for row in found
    ]
    assert found[-1]["stop"] == len(raw)


def test_teis_paths_agree_on_the_prompt_that_nobody_names() -> None:
    """Who counts with /tokenize, to cut texts into pieces, counts what /embed will."""
    speaker = with_token_vectors("tea ", default="query")
    for operation in ("tei.embed", "tei.embed_all", "tei.tokenize"):
        found = speaker.ask(operation, {"inputs": ["rain", "rain fell"]})
        for more in ({"prompt_name": "query"}, {"prompt_name": None}):
            assert found == speaker.ask(operation, {"inputs": ["rain", "rain fell"], **more})
        bare = {"inputs": ["rain", "rain fell"], "prompt_name": "document"}
        assert found != speaker.ask(operation, bare)
    whole = speaker.ask("tei.tokenize", {"inputs": "rain"})[0]
    assert [row["text"] for row in whole if not row["special"]] == ["tea", "rain"]


@pytest.mark.parametrize("task", ["rerank", "feature-extraction"])
def test_teis_tokens_have_no_prompt_that_the_task_does_not_put(task: str) -> None:
    made = endpoint_of("sentence-embedding").embedding
    assert made is not None
    embedding = dataclasses.replace(made, default_prompt="query", prompts={"query": "tea "})
    speaker = Speaker(dataclasses.replace(endpoint_of(task), embedding=embedding))
    [found] = speaker.ask("tei.tokenize", {"inputs": "rain"})
    assert [row["text"] for row in found if not row["special"]] == ["rain"]
    if task == "feature-extraction":
        assert speaker.ask("tei.embed_all", {"inputs": TEA}) == [speaker.ask(None, {"text": TEA})]


def test_tei_puts_a_prompt_before_tokens() -> None:
    [found] = SPEAKERS["sentence-embedding"].ask(
        "tei.tokenize", {"inputs": "rain", "prompt_name": "query"}
    )
    assert "".join(row["text"] for row in found if not row["special"]) == "tearain"


def test_teis_own_openai_always_normalizes() -> None:
    speaker = SPEAKERS["sentence-embedding"]
    answer = speaker.ask("tei_openai.embeddings", {"input": TEA})
    assert answer["data"][0]["embedding"] == vectors([TEA], normalize_embeddings=True)[0]
    assert answer["model"] == "named"


def test_teis_errors_by_kind() -> None:
    dialect, openai = DIALECTS["tei"], DIALECTS["tei_openai"]
    types = {"Unhealthy", "Backend", "Overloaded", "Validation", "Tokenizer", "Empty"}
    for code in KINDS:
        error = ServingError(code, "no")
        body = dialect.error_body(error)
        assert set(body) == {"error", "error_type"}
        assert body["error_type"] in types
        told = {"message": body["error"], "code": dialect.status(error), "type": body["error_type"]}
        assert openai.error_body(error) == told
        assert openai.status(error) == dialect.status(error)
    statuses = {code: dialect.status(ServingError(code, "no")) for code in KINDS}
    assert statuses["too_large"] == 413
    assert statuses["invalid_field"] == statuses["impossible"] == 422
    assert statuses["engine_failed"] == statuses["deadline"] == statuses["refused"] == 424
    assert statuses["overloaded"] == 429


@pytest.mark.parametrize(
    ("task", "operation", "body"),
    [
        ("sentence-embedding", "tei.embed", {"inputs": []}),
        ("sentence-embedding", "tei.root", {"inputs": []}),
        ("feature-extraction", "tei.embed_all", {"inputs": []}),
        ("text-classification", "tei.predict", {"inputs": []}),
        ("text-classification", "tei.root", {"inputs": []}),
        ("rerank", "tei.rerank", {"query": TEA, "texts": []}),
        (
            "sentence-similarity", "tei.similarity",
            {"inputs": {"source_sentence": TEA, "sentences": []}},
        ),
        ("sentence-embedding", "tei.tokenize", {"inputs": []}),
        ("sentence-embedding", "tei_openai.embeddings", {"input": []}),
    ],
)  # fmt: skip
def test_teis_batch_is_empty(task: str, operation: str, body: dict[str, Any]) -> None:
    dialect = dialect_of(operation)
    error = refusal(task, operation, body)
    assert dialect.status(error) == 400
    told = dialect.error_body(error)
    assert told.get("error_type", told.get("type")) == "Empty"
    assert told.get("code", 400) == 400


def test_nought_is_not_empty_to_tei() -> None:
    dialect = DIALECTS["tei"]
    error = refusal("sentence-embedding", "tei.embed", {"inputs": TEA, "dimensions": 0})
    assert error.got == 0
    assert (dialect.status(error), dialect.error_body(error)["error_type"]) == (422, "Validation")


# Cohere


@pytest.mark.parametrize("version", ["1", "2"])
def test_cohere_ranks_strings_and_objects(version: str) -> None:
    speaker = SPEAKERS["rerank"]
    served = speaker.ask(None, {"query": TEA, "texts": TEXTS})
    wanted = [{"index": row["index"], "relevance_score": row["score"]} for row in served]
    operation = f"cohere.rerank_v{version}"
    body = {"model": "m", "query": TEA, "documents": TEXTS}
    answer = speaker.ask(operation, body)
    assert answer["results"] == wanted
    assert answer["meta"]["api_version"]["version"] == version
    assert answer["usage"]["total_tokens"] > 6
    best = speaker.ask(operation, {**body, "top_n": 1, "return_documents": True})
    text = TEXTS[wanted[0]["index"]]
    assert best["results"] == [{**wanted[0], "document": {"text": text}}]
    objects = [{"title": TEA[:8], "body": TEA[9:], "id": 1}, {"title": RAIN, "body": "", "id": 2}]
    told = {**body, "documents": objects, "rank_fields": ["title", "body"]}
    rows = speaker.ask(operation, {**told, "return_documents": True})["results"]
    assert [row["document"] for row in rows] == [objects[row["index"]] for row in rows]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"documents": []}, "documents"),
        ({"documents": TEA}, "documents"),
        ({"documents": [{"title": TEA}]}, "documents"),
        ({"documents": [7]}, "documents"),
        ({"documents": ["x"] * 11}, "documents"),
        ({"query": None}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"rank_fields": "text"}, "rank_fields"),
        ({"rank_fields": ["text"] * 17}, "rank_fields"),
        ({"max_chunks_per_doc": "all"}, "max_chunks_per_doc"),
        ({"return_documents": 1}, "return_documents"),
        ({"model": DEEP}, "model"),
        ({"model": LONE}, "model"),
        ({"return_documents": True, "documents": [{"text": TEA, "more": DEEP}]}, "documents"),
        ({"return_documents": True, "documents": [{"text": TEA, "more": LONE}]}, "documents"),
    ],
)
def test_cohere_is_told_its_own_field(more: dict[str, Any], field: str) -> None:
    body = {"model": "m", "query": TEA, "documents": TEXTS, **more}
    assert refusal("rerank", "cohere.rerank_v1", body).field == field


@pytest.mark.parametrize("version", ["1", "2"])
def test_rerank_takes_what_vllms_load_generator_sends(version: str) -> None:
    speaker, operation = SPEAKERS["rerank"], f"cohere.rerank_v{version}"
    body = {"model": "m", "query": TEA, "documents": [*TEXTS, "tea " * 40]}
    longest = speaker.endpoint.tokens.max_length
    wanted = speaker.ask(operation, body)["results"]
    for most in (-1, longest, None):
        cut = {**body, "truncate_prompt_tokens": most}
        assert speaker.ask(operation, cut)["results"] == wanted
    for other in (longest - 1, "all", True):
        error = refusal("rerank", operation, {**body, "truncate_prompt_tokens": other})
        assert (error.field, error.limit) == ("truncate_prompt_tokens", longest)


class Counted(dict[str, Any]):
    """A document that counts how often it is looked into."""

    looks = 0

    def get(self, name: str, default: Any = None) -> Any:
        Counted.looks += 1
        return super().get(name, default)


@pytest.mark.parametrize(
    ("more", "field", "limit", "got"),
    [
        ({"documents": [Counted(text=TEA)] * 11}, "documents", 10, 11),
        (
            {"documents": [Counted(text=TEA)] * 10, "rank_fields": ["text"] * 40_000},
            "rank_fields", 16, 40_000,
        ),
    ],
)  # fmt: skip
def test_cohere_looks_into_no_more_documents_than_are_taken(
    more: dict[str, Any], field: str, limit: int, got: int
) -> None:
    Counted.looks = 0
    error = refusal("rerank", "cohere.rerank_v2", {"model": "m", "query": TEA, **more})
    assert (error.kind.code, error.field) == ("too_large", field)
    assert (error.limit, error.got) == (limit, got)
    assert Counted.looks == 0


def test_cohere_does_not_repeat_the_names_of_fields() -> None:
    body = {"query": TEA, "documents": [{"title": TEA}], "rank_fields": ["a private name"]}
    assert "private" not in refusal("rerank", "cohere.rerank_v2", body).message


# Hugging Face


def test_hf_gives_every_label_in_a_list_of_lists() -> None:
    speaker = SPEAKERS["text-classification"]
    every = {"parameters": {"top_k": len(LABELS)}}
    rows = speaker.ask(None, {"text": TEXTS, **every})
    assert speaker.ask("hf.inference", {"inputs": TEA}) == rows[:1]
    assert speaker.ask("hf.inference", {"inputs": TEXTS}) == rows
    best = speaker.ask("hf.inference", {"inputs": TEA, "parameters": {"top_k": 1}})
    assert best == [rows[0][:1]]


def test_hf_gives_rows_of_label_and_score() -> None:
    speaker = SPEAKERS["zero-shot-classification"]
    labels = ["tea", "rain"]
    served = speaker.ask(None, {"text": TEA, "candidate_labels": labels})
    rows = [
        {"label": label, "score": score}
        for label, score in zip(served["labels"], served["scores"], strict=True)
    ]
    for body in (
        {"inputs": TEA, "parameters": {"candidate_labels": labels}},
        {"inputs": TEA, "candidate_labels": labels, "options": {"wait_for_model": True}},
    ):
        assert speaker.ask("hf.inference", body) == rows
    many = {"inputs": [TEA], "parameters": {"candidate_labels": labels}}
    assert speaker.ask("hf.inference", many) == [rows]


def test_hf_groups_entities() -> None:
    speaker = SPEAKERS["token-classification"]
    body = {"text": TEA, "parameters": {"aggregation_strategy": "simple"}}
    assert speaker.ask("hf.inference", {"inputs": TEA}) == speaker.ask(None, body)
    plain = {"inputs": TEA, "parameters": {"aggregation_strategy": "none"}}
    assert speaker.ask("hf.inference", plain) == speaker.ask(None, {"text": TEA})


@pytest.mark.parametrize("task", TASKS)
def test_hf_takes_null_for_what_is_not_sent(task: str) -> None:
    speaker = SPEAKERS[task]
    body: dict[str, Any] = {"inputs": OURS[task]}
    needed = {}
    if task == "zero-shot-classification":
        needed = {"candidate_labels": ["tea", "rain"]}
        body = {"inputs": TEA}
    elif task != "question-answering" and "text" in OURS[task]:
        body = {"inputs": OURS[task]["text"]}
    nulls = {row.name: None for row in speaker.task.parameters} | {"of_another_client": None}
    wanted = speaker.ask("hf.inference", {**body, "parameters": needed})
    assert speaker.ask("hf.inference", {**body, "parameters": {**nulls, **needed}}) == wanted


def test_hf_takes_the_parameters_of_vectors_beside_the_inputs() -> None:
    speaker = SPEAKERS["sentence-embedding"]
    of_length_one = vectors([TEA], normalize_embeddings=True)
    assert speaker.ask("hf.inference", {"inputs": TEA}) == of_length_one != vectors([TEA])
    for sent in (None, True):
        assert speaker.ask("hf.inference", {"inputs": TEA, "normalize": sent}) == of_length_one
    raw = speaker.ask("hf.inference", {"inputs": TEA, "normalize": False})
    assert raw == vectors([TEA])
    body = {"inputs": TEXTS, "normalize": True, "dimensions": 4, "truncate": True}
    wanted = vectors(TEXTS, normalize_embeddings=True, truncate_dim=4)
    assert speaker.ask("hf.inference", body) == wanted
    for more in ({"encoding_format": "base64"}, {"truncation_direction": "left"}):
        [field] = more
        assert refusal("sentence-embedding", "hf.inference", {**body, **more}).field == field
    assert refusal("sentence-embedding", "hf.inference", {**body, "dimensions": 0}).field == (
        "dimensions"
    )
    tokens = {"inputs": TEA, "normalize": True}
    assert refusal("feature-extraction", "hf.inference", tokens).field == "normalize"


def test_hf_gives_the_cosine_whatever_the_models_own_similarity_is() -> None:
    speaker = SPEAKERS["sentence-similarity"]
    inputs = OURS["sentence-similarity"]
    found = speaker.ask("hf.inference", {"inputs": inputs})
    assert found == speaker.ask("tei.similarity", {"inputs": inputs})
    assert found != speaker.ask(None, {"inputs": inputs})


@pytest.mark.parametrize("task", ["question-answering", "rerank"])
def test_hf_gives_the_pipelines_answer_otherwise(task: str) -> None:
    speaker = SPEAKERS[task]
    body = {"inputs": OURS[task]}
    assert speaker.ask("hf.inference", body) == speaker.ask(None, body)


@pytest.mark.parametrize(
    ("task", "inputs", "field"),
    [
        ("text-classification", 5, "inputs"),
        ("fill-mask", TEA, "inputs"),
        ("text-classification", {"text": 5}, "text"),
        ("text-classification", {"text": TEA, "text_pair": 5}, "text_pair"),
        ("question-answering", {"question": TEA, "context": 5}, "context"),
    ],
)
def test_hf_is_told_the_field_that_was_sent(task: str, inputs: Any, field: str) -> None:
    error = refusal(task, "hf.inference", {"inputs": inputs})
    assert error.field == field


# KServe V1


@pytest.mark.parametrize("task", TASKS)
def test_v1_answers_every_task(task: str) -> None:
    speaker = SPEAKERS[task]
    answer = speaker.ask("v1.predict", {"instances": [OURS[task]]})
    assert answer == {"predictions": [speaker.ask(None, OURS[task])]}
    if not speaker.task.form.first.many:
        two = refusal(task, "v1.predict", {"instances": [OURS[task]] * 2})
        assert (two.field, two.limit, two.got) == ("instances", 1, 2)
    else:
        twice = speaker.ask("v1.predict", {"instances": [OURS[task]] * 2})
        assert twice == {"predictions": answer["predictions"] * 2}


def test_v1_takes_bare_texts_and_parameters() -> None:
    body = {"instances": TEXTS, "parameters": {"top_k": 2}}
    speaker = SPEAKERS["text-classification"]
    served = speaker.ask(None, {"text": TEXTS, "parameters": {"top_k": 2}})
    assert speaker.ask("v1.predict", body) == {"predictions": served}


@pytest.mark.parametrize(
    ("task", "instances"),
    [
        ("text-classification", []),
        ("text-classification", "tea"),
        ("text-classification", [7]),
        ("text-classification", [{"text": TEA}, {"text": TEA, "text_pair": RAIN}]),
        ("text-classification", [{"words": TEA}]),
        ("question-answering", [TEA]),
        ("zero-shot-classification", [
            {"text": TEA, "candidate_labels": ["a"]}, {"text": TEA, "candidate_labels": ["b"]},
        ]),
        ("zero-shot-classification", [
            {"text": TEA, "candidate_labels": orjson.loads("[" * 1000 + "]" * 1000)}
            for _ in range(2)
        ]),
    ],
)  # fmt: skip
def test_v1_refuses_other_instances(task: str, instances: Any) -> None:
    assert refusal(task, "v1.predict", {"instances": instances}).kind.code == "invalid_field"


def test_v1_takes_null_for_what_need_not_be_sent() -> None:
    speaker = SPEAKERS["text-classification"]

    def predictions(*instances: Any) -> Any:
        return speaker.ask("v1.predict", {"instances": list(instances)})["predictions"]

    alone, pair = {"text": TEA}, {"text": TEA, "text_pair": RAIN}
    unpaired = {"text": TEA, "text_pair": None}
    plain, paired = predictions(alone), predictions(pair)
    assert predictions(unpaired) == plain
    assert predictions(unpaired, alone) == plain * 2
    assert predictions(unpaired, pair) == plain + paired
    labels = {"text": TEA, "candidate_labels": ["tea", "rain"]}
    other = SPEAKERS["zero-shot-classification"]
    unsaid = {**labels, "multi_label": None}
    answers = [other.ask("v1.predict", {"instances": [one]}) for one in (labels, unsaid)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("instance", [{"text": None}, {"text": TEA, "text_pair": 7}])
def test_v1_names_a_field_of_another_kind(instance: dict[str, Any]) -> None:
    error = refusal("text-classification", "v1.predict", {"instances": [instance]})
    assert (error.kind.code, error.field) == ("invalid_field", [*instance][-1])


# Texts that are too long


LONG = "tea " * 30


@pytest.mark.parametrize("operation", [None, "hf.inference", "v1.predict"])
@pytest.mark.parametrize("task", ["text-classification", "token-classification",
                                  "fill-mask", "zero-shot-classification",
                                  "feature-extraction", "sentence-embedding"])  # fmt: skip
def test_a_text_that_is_too_long_is_answered_as_its_refusal_advises(
    task: str, operation: str | None
) -> None:
    speaker = SPEAKERS[task]
    text = f"[MASK] {LONG}" if task == "fill-mask" else LONG
    needed = {"candidate_labels": ["tea", "rain"]} if task.startswith("zero") else {}
    own: dict[str, Any] = {"text": text, **needed}
    body = {
        None: own, "hf.inference": {"inputs": text, **needed}, "v1.predict": {"instances": [own]},
    }[operation]  # fmt: skip
    with pytest.raises(ServingError) as refused:
        speaker.ask(operation, {**body, "truncate": False})
    assert refused.value.kind.code == "too_large"
    assert "shorten it or send truncate" in refused.value.message
    assert speaker.ask(operation, {**body, "truncate": True})
    with pytest.raises(ServingError) as wrong:
        speaker.ask(operation, {**body, "truncate": "yes"})
    assert (wrong.value.kind.code, wrong.value.field) == ("invalid_field", "truncate")
    strides = task == "token-classification"
    assert ("parameter stride" in refused.value.message) == strides
    if strides:
        read_on = {**body, "parameters": {"stride": 2, "aggregation_strategy": "simple"}}
        assert speaker.ask(operation, read_on) != speaker.ask(operation, {**body, "truncate": True})


# What an endpoint says that it can be asked


def test_a_card_names_the_operations_of_its_engine() -> None:
    told = {
        task: set(card_of(speaker.endpoint, speaker.task)["operations"])
        for task, speaker in SPEAKERS.items()
    }
    assert all({"v1.predict", "hf.inference", "tei.tokenize"} <= names for names in told.values())
    assert "openai.embeddings" in told["sentence-embedding"] & told["sentence-similarity"]
    assert "tei.embed_all" in told["feature-extraction"] - told["sentence-embedding"]
    assert {"tei.rerank", "cohere.rerank_v1"} <= told["rerank"]
    crossing = speaker("sentence-similarity", head="sequence")
    assert "openai.embeddings" not in card_of(crossing.endpoint, crossing.task)["operations"]
    with pytest.raises(ServingError, match="no vectors"):
        crossing.ask("openai.embeddings", {"model": "m", "input": TEA})
    with pytest.raises(ServingError, match="no labels"):
        speaker("rerank", head="vector").ask("tei.predict", {"inputs": TEA})
