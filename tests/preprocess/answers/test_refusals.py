"""What each task refuses, with the status of the table; nothing here reaches an engine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from preprocess.answers import TASKS as TASK_TABLE
from preprocess.answers.classification import MOST_LABELS
from preprocess.answers.embedding import MOST_KEPT, MOST_NUMBERS
from preprocess.parameters import CHARACTERS_A_TEXT
from preprocess.request import read_body
from preprocess.threads import OFF_LOOP_CHARACTERS
from preprocess.windows import Windows
from tests.preprocess.answers.families import FAMILIES, MAX_LENGTH
from tests.preprocess.answers.served import Served, endpoint_of, serve
from tests.preprocess.answers.test_sentence_models import embedding
from transformer_serving.contract.body_limits import MAX_TIMEOUT_MS
from transformer_serving.contract.endpoint import Limits
from transformer_serving.contract.errors import ServingError
from transformer_serving.contract.heads import HEADS, TASKS

LONG = "tea " * 60
SIMILAR = ("source_sentence", "sentences")
RANKED = ("query", "texts")
MANY = ["a"] * 51
ENTAILS = {
    "labels": ["contradiction", "entailment"],
    "problem_type": "single_label",
    "activation": "softmax",
    "entailment": 1,
}
ONE_LABEL = {"labels": ["LABEL_0"], "problem_type": "regression", "activation": "sigmoid"}
CLASSIFICATION = {
    "zero-shot-classification": ENTAILS,
    "rerank": ONE_LABEL,
    "sentence-similarity": ONE_LABEL,
}
GOOD: dict[str, dict[str, Any]] = {
    "text-classification": {"text": "tea"},
    "token-classification": {"text": "tea"},
    "question-answering": {"question": "who?", "context": "Anna Berg"},
    "fill-mask": {"text": "hot [MASK]"},
    "zero-shot-classification": {"text": "tea", "candidate_labels": ["a", "b"]},
    "feature-extraction": {"text": "tea"},
    "sentence-embedding": {"text": "tea"},
    "sentence-similarity": {"source_sentence": "tea", "sentences": ["a", "b"]},
    "rerank": {"query": "tea", "texts": ["a", "b"]},
}


def served(task: str) -> Served:
    changes = {"classification": CLASSIFICATION[task]} if task in CLASSIFICATION else {}
    return serve(FAMILIES["bert"], task, torch.nn.Identity(), **changes)


def outcome(endpoint: Served, body: Any) -> Any:
    """The rows that the engine would get, or the refusal."""
    try:
        request = read_body(body, endpoint.task, endpoint.endpoint.limits)
        return endpoint.task.encode(request, endpoint.tokenizer).encoded
    except ServingError as error:
        return error


def parameters(**values: Any) -> dict[str, Any]:
    return {"parameters": values}


# Beside the task's good body: what is changed, the status, and the field that is named.
CASES: list[tuple[str, dict[str, Any], int, str | None]] = [
    ("text-classification", parameters(top_k=0), 400, "top_k"),
    ("text-classification", parameters(function_to_apply="relu"), 400, "function_to_apply"),
    ("text-classification", parameters(max_length=MAX_LENGTH - 1), 400, "max_length"),
    ("text-classification", parameters(return_all_scores=1), 400, "return_all_scores"),
    ("text-classification", parameters(padding="max_length"), 400, "padding"),
    ("fill-mask", parameters(batch_size=0), 400, "batch_size"),
    ("text-classification", {"text_pair": LONG}, 413, None),
    ("text-classification", {"text": LONG}, 413, "text"),
    ("token-classification", parameters(aggregation_strategy="all"), 400, "aggregation_strategy"),
    ("token-classification", parameters(stride=40), 400, "stride"),
    ("token-classification", parameters(stride=2, aggregation_strategy="none"), 400, "stride"),
    ("token-classification", parameters(ignore_labels=[1]), 400, "ignore_labels"),
    ("token-classification", {"text": LONG, **parameters(stride=38)}, 422, "stride"),
    ("token-classification", {"text": LONG, "truncate": False}, 413, "text"),
    (
        "token-classification",
        {"text": [LONG * 6] * 9, **parameters(stride=30, aggregation_strategy="simple")},
        413,
        None,
    ),
    ("question-answering", parameters(top_k="3"), 400, "top_k"),
    ("question-answering", parameters(max_seq_len=41), 400, "max_seq_len"),
    ("question-answering", parameters(doc_stride=41), 400, "doc_stride"),
    ("question-answering", parameters(align_to_words=1), 400, "align_to_words"),
    ("question-answering", {"question": ["a", "b"], "context": ["c"]}, 400, "context"),
    ("question-answering", {"question": "a", "context": ["c"]}, 400, "context"),
    ("question-answering", {"context": ""}, 422, "context"),
    ("question-answering", {"question": ""}, 422, "question"),
    ("question-answering", {"context": LONG, **parameters(doc_stride=39)}, 422, "doc_stride"),
    ("question-answering", {"question": LONG}, 413, "question"),
    (
        "question-answering",
        {"question": "?", "context": "a " * 1500, **parameters(doc_stride=33)},
        413,
        None,
    ),
    # A context is in each question's windows.
    ("question-answering", {"question": ["a b c d"] * 40, "context": LONG * 9}, 413, None),
    ("question-answering", parameters(top_k=1001), 400, "top_k"),
    ("question-answering", {"context": "a " * 600, **parameters(top_k=1000)}, 413, "top_k"),
    ("question-answering", parameters(doc_stride=10**30), 400, "doc_stride"),
    ("fill-mask", parameters(top_k=13), 400, "top_k"),
    ("fill-mask", parameters(targets=[None]), 400, "targets"),
    ("fill-mask", parameters(targets=["a"] * 51), 413, "targets"),
    ("fill-mask", parameters(targets=[]), 422, "targets"),
    ("fill-mask", parameters(targets=[""]), 422, "targets"),
    ("fill-mask", {"text": "no mask"}, 422, "text"),
    ("rerank", parameters(function_to_apply="softmax"), 400, "function_to_apply"),
    ("fill-mask", {"text": f"[MASK] {LONG}"}, 413, "text"),
    ("fill-mask", {"text": ["[MASK] " * 30] * 40}, 413, "top_k"),
    ("zero-shot-classification", {"candidate_labels": 3}, 400, "candidate_labels"),
    ("zero-shot-classification", {"candidate_labels": None}, 400, "candidate_labels"),
    ("zero-shot-classification", parameters(candidate_labels="a"), 400, "parameters"),
    ("zero-shot-classification", {"multi_label": "yes"}, 400, "multi_label"),
    ("zero-shot-classification", {"candidate_labels": []}, 422, "candidate_labels"),
    ("zero-shot-classification", {"candidate_labels": " , "}, 422, "candidate_labels"),
    ("zero-shot-classification", {"hypothesis_template": "none"}, 422, "hypothesis_template"),
    ("zero-shot-classification", {"hypothesis_template": "{"}, 422, "hypothesis_template"),
    ("zero-shot-classification", {"hypothesis_template": "{0.real}"}, 422, "hypothesis_template"),
    ("zero-shot-classification", {"hypothesis_template": "{:9999}"}, 422, "hypothesis_template"),
    ("zero-shot-classification", {"hypothesis_template": "{} {1}"}, 422, "hypothesis_template"),
    ("zero-shot-classification", {"hypothesis_template": "{!a}"}, 422, "hypothesis_template"),
    ("zero-shot-classification", {"hypothesis_template": "{}{0}"}, 422, "hypothesis_template"),
    (
        "zero-shot-classification",
        {"hypothesis_template": "{0}" * 900, "candidate_labels": ["b" * 3000]},
        413,
        "hypothesis_template",
    ),
    (
        "zero-shot-classification",
        {"hypothesis_template": "{}" + "b" * 2900, "candidate_labels": ["b"] * 11},
        413,
        "hypothesis_template",
    ),
    (
        "zero-shot-classification",
        {"text": ["a"] * 11, "candidate_labels": ["b" * 2800]},
        413,
        "candidate_labels",
    ),
    ("zero-shot-classification", {"text": ""}, 422, "text"),
    ("zero-shot-classification", {"text": ["a"] * 26}, 413, "candidate_labels"),
    ("zero-shot-classification", {"candidate_labels": [LONG]}, 413, "candidate_labels"),
    ("zero-shot-classification", {"hypothesis_template": LONG + "{}"}, 413, "hypothesis_template"),
    ("zero-shot-classification", {"text": LONG, "truncate": False}, 413, "text"),
    ("feature-extraction", parameters(truncation="yes"), 400, "truncation"),
    ("feature-extraction", {"text": LONG}, 413, "text"),
    ("sentence-embedding", parameters(prompt_name="query"), 400, "prompt_name"),
    ("sentence-embedding", parameters(truncate_dim=33), 400, "truncate_dim"),
    ("sentence-embedding", parameters(prompt="\ud800"), 400, "prompt"),
    ("sentence-embedding", {"text": LONG, "truncate": False}, 413, "text"),
    ("sentence-embedding", {"text": ["a"] * 11, **parameters(prompt="b" * 3000)}, 413, "prompt"),
    ("sentence-similarity", parameters(top_k=2), 400, "parameters"),
    ("sentence-similarity", {"source_sentence": ["a"]}, 400, "source_sentence"),
    ("sentence-similarity", {"sentences": "a"}, 400, "sentences"),
    (
        "sentence-similarity",
        {"sentences": ["a"] * 11, **parameters(prompt="b" * 3000)},
        413,
        "prompt",
    ),
    ("sentence-similarity", {"sentences": []}, 400, "sentences"),
    ("sentence-similarity", {"sentences": MANY}, 413, "sentences"),
    ("sentence-similarity", {"sentences": [LONG], "truncate": False}, 413, None),
    ("rerank", parameters(top_k=0), 400, "top_k"),
    ("rerank", {"texts": [None]}, 400, "texts"),
    ("rerank", {"texts": MANY}, 413, "texts"),
    ("rerank", {"texts": ["a" * 3001]}, 413, "texts"),
    ("rerank", {"texts": [LONG], "truncate": False}, 413, None),
]


@pytest.mark.parametrize(("task", "change", "status", "field"), CASES)
def test_a_refusal_has_the_tables_status_and_names_its_field(
    task: str, change: dict[str, Any], status: int, field: str | None
) -> None:
    error = outcome(served(task), {**GOOD[task], **change})
    assert isinstance(error, ServingError), error
    assert (error.kind.status, error.field) == (status, field)
    assert "tea" not in str(error.body())
    if status == 413:
        assert isinstance(error.limit, int)
        assert isinstance(error.got, int)
        assert error.got > error.limit


@pytest.mark.parametrize("task", TASKS)
def test_every_task_refuses_what_it_does_not_know(task: str) -> None:
    endpoint = served(task)
    good = outcome(endpoint, GOOD[task])
    assert not isinstance(good, ServingError), good.message
    for change, field in (
        (parameters(temperature=1), "parameters"),
        (parameters(truncate=True), "parameters"),
        ({"parameters": []}, "parameters"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"truncate": 1}, "truncate"),
        ({"colour": "red"}, None),
        ({"inputs": "a"}, None),
    ):
        error = outcome(endpoint, {**GOOD[task], **change})
        assert (error.kind.status, error.field) == (400, field)
    for field in GOOD[task]:
        error = outcome(endpoint, {key: GOOD[task][key] for key in GOOD[task] if key != field})
        assert (error.kind.status, error.field) == (400, field)


@pytest.mark.parametrize("task", TASKS)
def test_the_inference_apis_shape_and_raw_text(task: str) -> None:
    endpoint = served(task)
    good = dict(GOOD[task])
    beside = {key: good.pop(key) for key in endpoint.task.form.beside if key in good}
    inputs = good if len(good) > 1 else good.get("text")
    rows = outcome(endpoint, {"inputs": inputs, "parameters": beside})
    assert [row.ids for row in rows] == [row.ids for row in outcome(endpoint, GOOD[task])]
    raw = outcome(endpoint, b"hot [MASK]")
    if task in ("question-answering", "sentence-similarity", "rerank"):
        assert raw.kind.code == "malformed_body"
        assert outcome(endpoint, {"inputs": "hot tea"}).field == "inputs"
    elif task == "zero-shot-classification":
        assert raw.field == "candidate_labels"
    else:
        assert len(raw) == 1


@pytest.mark.parametrize(
    ("inputs", "status"),
    [
        ({"text": "a"}, None),
        ([{"text": "a"}, {"text": "b", "text_pair": "c"}], None),
        ([{"text": "a"}, "b"], 400),
        ([{"text": ["a"]}], 400),
        ({"text": "a", "text_pair": ["b"]}, 400),
        ({"words": "a"}, 400),
        ([], 400),
        ([{"text": "a"}] * 51, 413),
        (7, 400),
        (None, 400),
    ],
)
def test_objects_of_text_and_pair(inputs: Any, status: int | None) -> None:
    found = outcome(served("text-classification"), {"inputs": inputs})
    assert (found.kind.status if isinstance(found, ServingError) else None) == status


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("task", TASKS)
def test_every_body_is_work_or_a_refusal(task: str) -> None:
    endpoint = served(task)
    form = endpoint.task.form
    fields = st.sampled_from([*form.own, "inputs"])
    named = [parameter.name for parameter in endpoint.task.parameters]
    values = JSON | st.sampled_from(["[MASK]", ["a", "[MASK] b"], "", True, 0, 1, 3])
    some = st.dictionaries(st.sampled_from([*named, "other"]), values) if named else st.just({})
    body = st.dictionaries(fields, values)

    @settings(max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        body=JSON
        | st.binary()
        | body
        | st.builds(lambda one, two: {**GOOD[task], **one, "parameters": two}, body, some)
    )
    def check(body: Any) -> None:
        found = outcome(endpoint, body)
        if isinstance(found, ServingError):
            assert found.kind.status in (400, 413, 422)
        else:
            assert found
            assert all(row.ids for row in found)

    check()


def test_a_bundle_without_what_its_task_needs_is_told_so() -> None:
    for task in set(TASKS) - {"question-answering", "feature-extraction"}:
        changes = {"classification": CLASSIFICATION[task]} if task in CLASSIFICATION else {}
        endpoint = endpoint_of(FAMILIES["bert"], task, **changes)
        empty = replace(endpoint, classification=None, embedding=None, masks=None)
        with pytest.raises(ValueError, match=r"endpoint\.json has no"):
            TASK_TABLE[task](empty)


@pytest.mark.parametrize(
    ("task", "one", "many"), [("sentence-similarity", *SIMILAR), ("rerank", *RANKED)]
)
def test_what_stands_beside_each_text_has_a_limit_for_all(task: str, one: str, many: str) -> None:
    crosses = serve(
        FAMILIES["bert"], task, torch.nn.Identity(),
        classification=CLASSIFICATION[task], head="sequence",
    )  # fmt: skip
    body = {one: "b" * 3000, many: ["a"] * 10}
    assert len(outcome(crosses, body)) == 10
    request = read_body(body, crosses.task, crosses.endpoint.limits)
    assert request.characters == 3000 + 10 + 30_000 + 11 * CHARACTERS_A_TEXT
    error = outcome(crosses, {one: "b" * 3000, many: ["a"] * 11})
    assert (error.kind.status, error.field, error.limit, error.got) == (413, one, 30_000, 33_000)


def test_labels_of_all_texts_have_a_limit() -> None:
    """As JSON they are thousands of times as long as the request."""
    labels = [f"l{at}" for at in range(MOST_LABELS // 40)]
    classification = {"labels": labels, "problem_type": "single_label", "activation": "softmax"}
    many = serve(
        FAMILIES["bert"], "text-classification", torch.nn.Identity(), classification=classification
    )
    every = {"top_k": None}
    assert len(outcome(many, {"text": ["a"] * 40, "parameters": every})) == 40
    assert len(outcome(many, {"text": ["a"] * 41})) == 41
    error = outcome(many, {"text": ["a"] * 41, "parameters": every})
    assert (error.kind.status, error.field) == (413, "text")
    assert (error.limit, error.got) == (MOST_LABELS, 41 * len(labels))
    # One text is answered, however many labels the model has.
    classification["labels"] = [f"l{at}" for at in range(MOST_LABELS + 1)]
    more = serve(
        FAMILIES["bert"], "text-classification", torch.nn.Identity(), classification=classification
    )
    assert len(outcome(more, {"text": "a", "parameters": every})) == 1
    assert outcome(more, {"text": ["a"] * 2, "parameters": every}).limit == MOST_LABELS + 1


def features(width: int) -> Served:
    outputs = [{"name": "output_0", "dtype": "FP32", "dims": [-1, width]}]
    return serve(FAMILIES["bert"], "feature-extraction", torch.nn.Identity(), outputs=outputs)


@pytest.mark.parametrize("task", TASKS)
def test_a_token_that_the_model_does_not_know_is_refused(task: str) -> None:
    """Engines fail at it, each in its own way."""
    highest = max(max(row.ids) for row in outcome(served(task), GOOD[task]))
    for known, refused in ((highest + 1, False), (highest, True), (None, False)):
        plain = served(task)
        tokens = replace(plain.endpoint.tokens, known_ids=known)
        content = FAMILIES["bert"].tokenizer().to_str().encode()
        endpoint = Served(replace(plain.endpoint, tokens=tokens), content, plain.model)
        found = outcome(endpoint, GOOD[task])
        assert isinstance(found, ServingError) is refused
        if refused:
            assert (found.kind.code, found.limit, found.got) == ("impossible", highest, None)


def test_a_target_that_the_model_does_not_know_is_refused() -> None:
    plain, library = served("fill-mask"), FAMILIES["bert"].tokenizer()
    known = max(max(row.ids) for row in outcome(plain, GOOD["fill-mask"])) + 1
    tokens = replace(plain.endpoint.tokens, known_ids=known)
    endpoint = Served(
        replace(plain.endpoint, tokens=tokens), library.to_str().encode(), plain.model
    )
    beyond, within = (library.id_to_token(at) for at in (known, known - 1))
    assert beyond is not None
    for targets in ([beyond], [within, beyond]):
        error = outcome(endpoint, {**GOOD["fill-mask"], **parameters(targets=targets)})
        assert (error.kind.status, error.field, error.limit) == (422, "targets", known)
    assert len(outcome(endpoint, {**GOOD["fill-mask"], **parameters(targets=[within])})) == 1


def test_vectors_of_tokens_have_a_limit_for_all_texts() -> None:
    """As JSON they are thousands of times as long as the request."""
    text = "tea " * 30
    [row] = outcome(features(8192), {"text": text})
    numbers = 8192 * len(row.ids)
    most = MOST_NUMBERS // numbers
    assert len(outcome(features(8192), {"text": [text] * most})) == most
    error = outcome(features(8192), {"text": [text] * (most + 1)})
    assert (error.kind.status, error.field) == (413, "text")
    assert (error.limit, error.got) == (MOST_NUMBERS, (most + 1) * numbers)
    # What the model takes as one text is answered, however wide the model is.
    assert len(row.ids) << 20 > MOST_NUMBERS
    assert len(outcome(features(1 << 20), {"text": text})) == 1
    error = outcome(features(1 << 20), {"text": [text] * 2})
    assert (error.kind.status, error.limit) == (413, MAX_LENGTH << 20)


@pytest.mark.parametrize(("pooling", "head"), [("mean", "token_vectors"), ("engine", "vector")])
def test_vectors_of_tokens_that_are_pooled_here_have_a_limit_too(pooling: str, head: str) -> None:
    """All of a request's are kept until its last text is answered."""
    axes, width = HEADS[head].outputs[0], 1 << 20
    served = serve(
        FAMILIES["bert"], "sentence-embedding", torch.nn.Identity(), head=head,
        outputs=[{"name": "o", "dtype": "FP32", "dims": [*(-1 for _ in axes[1:]), width]}],
        embedding=embedding(pooling=pooling),
    )  # fmt: skip

    def encode(texts: int) -> int:
        body = {"text": ["tea " * 30] * texts, "parameters": {"prompt": ""}}
        request = read_body(body, served.task, served.endpoint.limits)
        work = served.task.encode(request, served.tokenizer)
        return sum(len(row.ids) for row in work.encoded)

    tokens = encode(1)
    most = MOST_KEPT // (tokens * width)
    assert encode(most) == most * tokens
    if pooling == "engine":
        assert encode(most + 1) == (most + 1) * tokens
        return
    with pytest.raises(ServingError) as caught:
        encode(most + 1)
    error = caught.value
    assert (error.kind.status, error.field) == (413, "text")
    assert (error.limit, error.got) == (MOST_KEPT, (most + 1) * tokens * width)


def test_a_text_that_is_cut_may_have_any_number_of_tokens() -> None:
    """Only its first window is read, so only that one counts."""
    limits = {"max_texts": 50, "max_characters": 3000, "max_tokens": 60, "max_batch_size": 8}
    for task in ("token-classification", "zero-shot-classification"):
        endpoint = served(task)
        small = replace(endpoint.endpoint, limits=Limits(**limits))
        endpoint.task = TASK_TABLE[task](small)
        body = {**GOOD[task], "text": LONG * 3}
        if "candidate_labels" in body:
            body["candidate_labels"] = ["a"]
        rows = outcome(endpoint, body)
        assert [len(row.ids) for row in rows] == [MAX_LENGTH]


def test_what_is_read_with_each_text_counts_each_time() -> None:
    """By these counts texts go to threads, and wait there."""
    for task, body, characters, texts in (
        ("sentence-embedding", {"text": ["ab"] * 5, **parameters(prompt="c" * 7)}, 5 * (2 + 7), 5),
        ("sentence-similarity", {"source_sentence": "abc", "sentences": ["de"] * 5}, 3 + 5 * 2, 6),
        ("rerank", {"query": "abc", "texts": ["de"] * 5}, 3 + 5 * (2 + 3), 6),
        ("fill-mask", {"text": "[MASK]", **parameters(targets=["ab", "c"])}, 6 + 3, 3),
        ("text-classification", {"text": ["a", "bc"]}, 3, 2),
    ):
        endpoint = served(task)
        request = read_body(body, endpoint.task, endpoint.endpoint.limits)
        assert request.characters == characters + texts * CHARACTERS_A_TEXT, task


# Of less than 4,096 characters, and of more work than any text of so many.
MULTIPLIED: dict[str, tuple[str, dict[str, Any]]] = {
    "labels": (
        "zero-shot-classification", {"text": ["!" * 248] * 4, "candidate_labels": ["a"] * 256},
    ),
    "tiny labels": (
        "zero-shot-classification", {"text": ["a"] * 16, "candidate_labels": ["a"] * 16},
    ),
    "entities": ("token-classification", {
        "text": "!" * 1020, **parameters(aggregation_strategy="simple", stride=508),
    }),
    "entities of bytes": ("token-classification", {
        "text": "\N{SLIGHTLY SMILING FACE}" * 300,
        **parameters(aggregation_strategy="simple", stride=508),
    }),
    "answers": ("question-answering", {
        "question": "a", "context": "!" * 1600, **parameters(doc_stride=378),
    }),
    "answers to a long question": ("question-answering", {
        "question": "!" * 100, "context": "!" * 1000, **parameters(doc_stride=280),
    }),
    "tiny texts": ("sentence-embedding", {"text": ["abcd"] * 256}),
    "targets": ("fill-mask", {"text": "[MASK]", **parameters(targets=["a"] * 300)}),
}  # fmt: skip
USUAL: dict[str, tuple[str, dict[str, Any]]] = {
    "labels": ("zero-shot-classification", {"text": "tea " * 40, "candidate_labels": ["tea"] * 10}),
    "entities": ("token-classification", {
        "text": "tea " * 400, **parameters(aggregation_strategy="simple", stride=64),
    }),
    "answers": ("question-answering", {"question": "what is hot?", "context": "tea " * 400}),
    "texts": ("sentence-embedding", {"text": ["tea " * 10] * 50}),
}  # fmt: skip


def characters(task: str, body: dict[str, Any]) -> int:
    """Of a request to a model of 512 tokens, as they are counted where threads are asked for."""
    endpoint = served(task).endpoint
    limits = Limits(max_texts=1024, max_characters=3000, max_tokens=262_144, max_batch_size=8)
    endpoint = replace(endpoint, tokens=replace(endpoint.tokens, max_length=512), limits=limits)
    return read_body(body, TASK_TABLE[task](endpoint), limits).characters


@pytest.mark.parametrize("asked", MULTIPLIED)
def test_a_short_request_of_much_work_is_counted_as_a_long_one(asked: str) -> None:
    """Else the loop stands still for it."""
    assert len(json.dumps(MULTIPLIED[asked])) < OFF_LOOP_CHARACTERS < characters(*MULTIPLIED[asked])


@pytest.mark.parametrize("asked", USUAL)
def test_a_usual_request_stays_on_the_loop(asked: str) -> None:
    assert characters(*USUAL[asked]) <= OFF_LOOP_CHARACTERS


def test_no_windows_count_that_are_refused() -> None:
    """However long they would be: what waits is counted by this, and others are refused for it."""
    task, body = "question-answering", {"question": "tea " * 10, "context": "tea " * 700}
    endpoint = served(task)
    request = read_body(body, endpoint.task, endpoint.endpoint.limits)
    assert request.characters < 2840 + endpoint.endpoint.limits.max_tokens


@pytest.mark.parametrize(
    "task",
    [
        "text-classification", "token-classification", "fill-mask", "zero-shot-classification",
        "feature-extraction", "sentence-embedding",
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", ["text", "inputs"])
def test_of_several_texts_the_one_that_is_too_long_is_told(task: str, field: str) -> None:
    """By its place: nobody else knows how many tokens each of them has."""
    endpoint = served(task)
    more = {"candidate_labels": ["a"]} if task.startswith("zero") else {}
    long = f"[MASK] {LONG}"
    error = outcome(endpoint, {field: ["[MASK] a", long], "truncate": False, "parameters": more})
    assert (error.kind.code, error.field) == ("too_large", field)
    assert error.message.startswith("text 2 of 2 has more tokens than the model takes; ")
    error = outcome(endpoint, {field: long, "truncate": False, "parameters": more})
    assert (error.kind.code, error.field) == ("too_large", field)
    assert error.message.startswith("a text has more tokens than the model takes; ")


def test_a_mask_that_may_be_cut_off_is_no_text_without_one() -> None:
    endpoint = served("fill-mask")
    cut = outcome(endpoint, {"text": f"{LONG} [MASK]", "truncate": True})
    assert (cut.kind.status, cut.field) == (422, "text")
    assert cut.message == "a text has no [MASK] to fill in among the tokens that the model takes"
    none = outcome(endpoint, {"text": "tea", "truncate": True})
    assert none.message == "a text has no [MASK] to fill in"


def test_a_longer_window_is_advised_where_there_is_one() -> None:
    endpoint, body = served("question-answering"), {"question": LONG, "context": LONG}
    for window, advised in ((None, False), (MAX_LENGTH, False), (MAX_LENGTH - 8, True)):
        error = outcome(endpoint, body | parameters(max_seq_len=window) if window else body)
        assert (error.kind.status, error.field) == (413, "question")
        assert ("raise max_seq_len" in error.message) is advised


def test_a_time_that_is_none_is_shown_with_its_bounds() -> None:
    for got in (0, MAX_TIMEOUT_MS + 1):
        error = outcome(served("fill-mask"), {"text": "[MASK]", "timeout_ms": got})
        assert (error.kind.code, error.field, error.got) == ("invalid_field", "timeout_ms", got)
        assert f"from 1 to {MAX_TIMEOUT_MS}" in error.message


@pytest.mark.parametrize("truncate", [True, False, None])
@pytest.mark.parametrize(("room", "fits"), [(1, True), (0, False)])
def test_a_hypothesis_leaves_the_text_a_token_or_is_refused(
    truncate: bool | None, room: int, fits: bool
) -> None:
    endpoint = served("zero-shot-classification")
    # Three special tokens, and one a word.
    most = MAX_LENGTH - 3
    labels = ["a", " ".join(["a"] * (most - room))]
    body = {"text": "a", "candidate_labels": labels, "hypothesis_template": "{}"}
    found = outcome(endpoint, {**body, "truncate": truncate})
    if fits:
        assert [len(row.ids) for row in found] == [5, MAX_LENGTH]
        return
    assert (found.kind.code, found.field) == ("too_large", "candidate_labels")
    assert (found.limit, found.got) == (most - 1, most)
    assert "shorten the label or hypothesis_template" in found.message


def test_too_many_pairs_are_refused_before_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    own = Windows.join

    def join(*given: Any) -> Any:
        made.append(given)
        return own(*given)

    monkeypatch.setattr(Windows, "join", join)
    endpoint = served("zero-shot-classification")
    body = {"text": ["tea " * 60] * 5, "candidate_labels": ["a"] * 10}
    assert len(outcome(endpoint, body)) == len(made) == 50
    made.clear()
    small = replace(endpoint.endpoint.limits, max_tokens=50 * MAX_LENGTH - 1)
    endpoint.task = TASK_TABLE["zero-shot-classification"](replace(endpoint.endpoint, limits=small))
    error = outcome(endpoint, body)
    assert (error.kind.code, error.limit, error.got) == (
        *("too_large", 50 * MAX_LENGTH - 1, 50 * MAX_LENGTH),
    )
    assert not made
