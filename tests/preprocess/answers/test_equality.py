"""Answers of preprocess against transformers' own pipelines, over texts that Hypothesis makes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.preprocess.answers.comparison import check_equal
from tests.preprocess.answers.families import (
    FAMILIES,
    FIRST_TOKEN_FAMILIES,
    LABELS,
    MAX_LENGTH,
    TOKEN_FAMILIES,
    Family,
)
from tests.preprocess.answers.served import Served, pipeline_of, plain, serve
from tests.preprocess.answers.texts import lists, texts
from transformer_serving.contract.errors import ServingError

pytestmark = pytest.mark.filterwarnings("ignore")
BY_FIRST_TOKEN = pytest.mark.parametrize("name", FIRST_TOKEN_FAMILIES)
BY_TOKEN = pytest.mark.parametrize("name", TOKEN_FAMILIES)
few = settings(
    max_examples=30,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    database=None,
)


def same(
    served: Served, name: str, inputs: Any, parameters: dict[str, Any], **only_reference: Any
) -> None:
    """The Inference API's shape against pipeline(inputs, **parameters)."""
    task = served.endpoint.task
    pipeline = pipeline_of(name, task, served.model)
    reference = plain(pipeline(inputs, **parameters, **only_reference))
    check_equal(task, served.answer({"inputs": inputs, "parameters": parameters}), reference)


def one_or_many(family: Family) -> st.SearchStrategy[str | list[str]]:
    return texts(family) | lists(family)


@BY_FIRST_TOKEN
def test_text_classification(name: str) -> None:
    family = FAMILIES[name]
    served = serve(family, "text-classification", family.model("sequence"))

    @few
    @given(
        inputs=one_or_many(family),
        parameters=st.fixed_dictionaries(
            {"truncation": st.just(True)},
            optional={
                "top_k": st.none() | st.integers(1, 8),
                "function_to_apply": st.sampled_from(["softmax", "SIGMOID", "none"]),
            },
        ),
    )
    def check(inputs: Any, parameters: Any) -> None:
        same(served, name, inputs, parameters)

    check()


@pytest.mark.parametrize(
    "parameters",
    [
        {"truncation": True, "padding": True, "batch_size": 2, "max_length": MAX_LENGTH},
        {"max_length": MAX_LENGTH},
        {"padding": False, "truncation": True, "batch_size": 8, "top_k": None},
    ],
)
def test_text_classification_as_pipelines_are_usually_called(parameters: dict[str, Any]) -> None:
    family = FAMILIES["bert"]
    served = serve(family, "text-classification", family.model("sequence"))
    for inputs in ("tea", ["tea", "a small warm room"], "tea " * 60):
        same(served, "bert", inputs, parameters)


def test_all_scores_of_the_pipeline_of_before() -> None:
    """transformers 4's: the answer of its `top_k` None, in one more list for one text."""
    family = FAMILIES["bert"]
    served = serve(family, "text-classification", family.model("sequence"))

    def answer(inputs: Any, **parameters: Any) -> Any:
        return served.answer({"inputs": inputs, "parameters": parameters})

    def same_as(found: Any, reference: Any) -> None:
        check_equal("text-classification", found, reference)

    one, two = answer("tea", top_k=None), answer(["tea", "snow"], top_k=None)
    assert len(one) == len(LABELS)
    same_as(answer("tea", return_all_scores=True), [one])
    same_as(answer(["tea", "snow"], return_all_scores=True), two)
    same_as(answer("tea", return_all_scores=False), answer("tea"))
    same_as(answer("tea", return_all_scores=True, top_k=1), answer("tea", top_k=1))


@pytest.mark.parametrize(
    ("labels", "problem", "activation"),
    [
        (LABELS, "multi_label_classification", "sigmoid"),
        (("LABEL_0",), None, "sigmoid"),
        (("LABEL_0",), "regression", "none"),
    ],
)
def test_text_classification_of_other_kinds(
    labels: tuple[str, ...], problem: str | None, activation: str
) -> None:
    family = FAMILIES["bert"]
    model = family.model("sequence", labels=labels, problem_type=problem)
    kind = {"regression": "regression", None: "multi_label"}.get(problem, "multi_label")
    served = serve(
        family,
        "text-classification",
        model,
        classification={"labels": labels, "problem_type": kind, "activation": activation},
    )

    @few
    @given(inputs=one_or_many(family), top_k=st.none() | st.integers(1, 8))
    def check(inputs: Any, top_k: int | None) -> None:
        same(served, "bert", inputs, {"truncation": True, "top_k": top_k})
        same(served, "bert", inputs, {"truncation": True})

    check()


@BY_FIRST_TOKEN
def test_text_classification_of_pairs(name: str) -> None:
    family = FAMILIES[name]
    served = serve(family, "text-classification", family.model("sequence"))
    pair = st.fixed_dictionaries({"text": texts(family), "text_pair": texts(family)})

    @few
    @given(inputs=pair | st.lists(pair, min_size=1, max_size=3))
    def check(inputs: Any) -> None:
        same(served, name, inputs, {"truncation": True})
        rows = inputs if isinstance(inputs, list) else [inputs]
        own = {field: [row[field] for row in rows] for field in ("text", "text_pair")}
        reference = plain(
            pipeline_of(name, "text-classification", served.model)(rows, truncation=True)
        )
        check_equal("text-classification", served.answer({**own, "truncate": True}), reference)

    check()


@BY_TOKEN
def test_token_classification(name: str) -> None:
    family = FAMILIES[name]
    served = serve(family, "token-classification", family.model("tokens"))
    strategies = st.sampled_from(["none", "simple", "first", "average", "MAX"])

    @settings(few, max_examples=40)
    @given(
        inputs=one_or_many(family),
        parameters=st.fixed_dictionaries(
            {},
            optional={
                "aggregation_strategy": strategies,
                "ignore_labels": st.lists(st.sampled_from([*LABELS, "PER"])),
            },
        ),
    )
    def check(inputs: Any, parameters: Any) -> None:
        same(served, name, inputs, parameters)

    check()


def test_one_label_that_is_left_out_needs_no_list() -> None:
    """The pipeline looks for a label in a string, letters and all: lists alone are compared."""
    served = serve(FAMILIES["bert"], "token-classification", FAMILIES["bert"].model("tokens"))
    text = "the quick brown fox jumps over the lazy dog"

    def answer(ignored: Any) -> Any:
        return served.answer({"inputs": text, "parameters": {"ignore_labels": ignored}})

    label = next(entity["entity"] for entity in answer(["O"]))
    assert answer(label) == answer([label])
    assert answer(label) != answer([])


@BY_TOKEN
def test_token_classification_in_windows(name: str) -> None:
    family = FAMILIES[name]
    served = serve(family, "token-classification", family.model("tokens"))
    strategies: st.SearchStrategy[str | None] = st.sampled_from(
        ["simple", "first", "average", "max"]
    )
    if family.padding_side == "right":
        # Without one, the pipeline's `index` counts the padding on the left of its last window.
        strategies |= st.none()

    @few
    @given(
        inputs=st.lists(texts(family), min_size=1, max_size=4).map(" ".join),
        stride=st.integers(0, 30),
        strategy=strategies,
    )
    def check(inputs: str, stride: int, strategy: str | None) -> None:
        named = {} if strategy is None else {"aggregation_strategy": strategy}
        same(served, name, inputs, {"stride": stride, **named})

    check()


@BY_TOKEN
def test_question_answering(name: str) -> None:
    family = FAMILIES[name]
    served = serve(family, "question-answering", family.model("spans", labels=("first", "last")))
    pipeline = pipeline_of(name, "question-answering", served.model)
    # A written padding token has no position of its own, so that spans tie; and with padding on
    # the left the pipeline takes it for padding.
    filled = texts(family).filter(lambda text: bool(text) and family.specials[0] not in text)

    @settings(few, max_examples=60)
    @given(
        question=st.text("abc de?", min_size=1, max_size=6) | st.just("where is Anna?"),
        context=filled | st.lists(filled, min_size=3, max_size=6).map(" ".join),
        parameters=st.fixed_dictionaries(
            {},
            optional={
                "top_k": st.integers(1, 6),
                "max_seq_len": st.integers(26, 40),
                "doc_stride": st.integers(0, 8),
                "max_answer_len": st.integers(1, 20),
                "max_question_len": st.integers(1, 20),
                "handle_impossible_answer": st.booleans(),
                "align_to_words": st.booleans(),
            },
        ),
    )
    def check(question: str, context: str, parameters: Any) -> None:
        inputs = {"question": question, "context": context}
        ours = served.outcome({"inputs": inputs, "parameters": parameters})
        if isinstance(ours, ServingError):
            # The reference panics here: its windows would never reach the end.
            assert (ours.kind.status, ours.field) == (422, "doc_stride")
            return
        check_equal("question-answering", ours, plain(pipeline(**inputs, **parameters)))

    check()


@pytest.mark.parametrize("handle_impossible_answer", [False, True])
def test_a_context_of_fewer_spans_than_asked_for_is_filled_up_as_the_pipeline_does(
    handle_impossible_answer: bool,
) -> None:
    family = FAMILIES["bert"]
    served = serve(family, "question-answering", family.model("spans", labels=("first", "last")))
    pipeline = pipeline_of("bert", "question-answering", served.model)
    inputs = {"question": "where does Anna work?", "context": "tea rain"}
    parameters = {"top_k": 12, "handle_impossible_answer": handle_impossible_answer}
    answers = served.answer({"inputs": inputs, "parameters": parameters})
    check_equal("question-answering", answers, plain(pipeline(**inputs, **parameters)))


@pytest.mark.parametrize("top_k", [1, 3])
def test_question_answering_of_several(top_k: int) -> None:
    family = FAMILIES["bert"]
    served = serve(family, "question-answering", family.model("spans", labels=("first", "last")))
    pipeline = pipeline_of("bert", "question-answering", served.model)
    context = "Anna Berg works for the Royal Museum in Oslo since 2019."
    several = {
        "question": ["who?", "where does Anna work?"],
        "context": [context, context + " " + context],
    }
    for inputs in (
        several,
        {"question": several["question"], "context": context},
        {"question": ["who?"], "context": [context]},
    ):
        reference = plain(pipeline(**inputs, top_k=top_k))
        body = {"inputs": inputs, "parameters": {"top_k": top_k}}
        check_equal("question-answering", served.answer(body), reference)
    own = served.answer({**several, "parameters": {"top_k": top_k}})
    check_equal("question-answering", own, plain(pipeline(**several, top_k=top_k)))


@BY_TOKEN
def test_fill_mask(name: str) -> None:
    family = FAMILIES[name]
    served = serve(family, "fill-mask", family.model("masks"))
    words = texts(family).map(lambda text: text[:20])

    @settings(few, max_examples=30)
    @given(
        inputs=st.lists(words, min_size=1, max_size=3).map(
            lambda parts: f" {family.mask} ".join([parts[0], *parts[1:], ""][:3])
        )
        | st.lists(words.map(lambda text: f"{text} {family.mask}."), min_size=1, max_size=3),
        parameters=st.fixed_dictionaries(
            {},
            optional={
                "top_k": st.integers(1, 12),
                "targets": st.sampled_from(["tea", ["tea", "small", "tea"], ["Oslo", "zzqq"]]),
            },
        ),
    )
    def check(inputs: Any, parameters: Any) -> None:
        ours = served.outcome({"inputs": inputs, "parameters": parameters})
        if isinstance(ours, ServingError):
            assert ours.kind.status == 413  # nothing is cut here
            return
        pipeline = pipeline_of(name, "fill-mask", served.model)
        check_equal("fill-mask", ours, plain(pipeline(inputs, **parameters)))

    check()


@BY_FIRST_TOKEN
def test_zero_shot_classification(name: str) -> None:
    family = FAMILIES[name]
    labels = ("contradiction", "neutral", "entailment")
    served = serve(
        family,
        "zero-shot-classification",
        family.model("sequence", labels=labels),
        classification={
            "labels": labels,
            "problem_type": "single_label",
            "activation": "softmax",
            "entailment": 2,
        },
    )
    filled = texts(family).filter(bool)
    candidate = st.sampled_from(["tea", "small towns", "🙂", "naïve", "travel", "tea"])

    @settings(few, max_examples=25)
    @given(
        inputs=filled | st.lists(filled, min_size=1, max_size=3),
        parameters=st.fixed_dictionaries(
            {
                "candidate_labels": st.lists(candidate, min_size=1, max_size=5)
                | st.just("tea, small towns , travel,")
            },
            optional={
                "hypothesis_template": st.sampled_from(["It is {}.", "{}", "{{}} is {0}"]),
                "multi_label": st.booleans(),
            },
        ),
    )
    def check(inputs: Any, parameters: Any) -> None:
        same(served, name, inputs, parameters)

    check()


@BY_TOKEN
def test_feature_extraction(name: str) -> None:
    family = FAMILIES[name]
    served = serve(family, "feature-extraction", family.model("token_vectors"))

    @few
    @given(inputs=one_or_many(family))
    def check(inputs: Any) -> None:
        same(served, name, inputs, {"truncation": True})

    check()
