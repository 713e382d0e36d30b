"""Answers that may be much longer than what was asked, and texts that are several rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from preprocess.answers import TASKS as TASK_TABLE
from preprocess.answers.context_window import MOST_CHARACTERS
from preprocess.answers.fill_mask import MOST_IN_A_ROW
from preprocess.answers.question import QuestionAnswering
from preprocess.answers.work import Work
from preprocess.request import read_body
from preprocess.rows import Row
from preprocess.threads import FEW_PIECES
from tests.preprocess.answers.comparison import check_equal
from tests.preprocess.answers.families import FAMILIES
from tests.preprocess.answers.served import Served, pipeline_of, plain, serve
from tests.preprocess.answers.test_refusals import served
from transformer_serving.contract.errors import ServingError

CHARACTERS = 200_000


def work_of(endpoint: Served, body: dict[str, Any]) -> Work:
    request = read_body(body, endpoint.task, endpoint.endpoint.limits)
    work: Work = endpoint.task.encode(request, endpoint.tokenizer)
    return work


def for_long_texts(task: str) -> Served:
    """With the limits that convert writes."""
    endpoint = served(task)
    limits = replace(
        endpoint.endpoint.limits, max_texts=1024, max_characters=CHARACTERS, max_tokens=262_144
    )
    endpoint.endpoint = replace(endpoint.endpoint, limits=limits)
    endpoint.task = TASK_TABLE[task](endpoint.endpoint)
    return endpoint


def flat(work: Work) -> list[Row]:
    """Scores as of a model that knows none of the words, the first tokens' a little better."""
    return [(np.linspace(1, 0, 2 * len(row.ids), dtype=np.float32).reshape(-1, 2),)
            for row in work.encoded]  # fmt: skip


# Each is one token, that of what is not known.
HUGE = " ".join(f"{at}" * 3000 for at in range(10, 40))


@pytest.mark.parametrize("questions", [1, 10])
def test_answers_to_questions_have_a_limit_in_characters(questions: int) -> None:
    """A word of any length is one token, and is in each of many answers."""
    endpoint = for_long_texts("question-answering")

    def asked(top_k: int, longest: int = 40) -> dict[str, Any]:
        return {
            "question": ["who?"] * questions if questions > 1 else "who?", "context": HUGE,
            "parameters": {"top_k": top_k, "max_answer_len": longest},
        }  # fmt: skip

    work = work_of(endpoint, asked(3))
    answers = endpoint.task.render(flat(work), work)
    written = sum(len(one["answer"]) for each in answers for one in (
        each if isinstance(each, list) else [each]))  # fmt: skip
    assert written <= MOST_CHARACTERS
    with pytest.raises(ServingError) as caught:
        work_of(endpoint, asked(1000))
    error = caught.value
    assert (error.kind.status, error.field, error.limit) == (413, "top_k", MOST_CHARACTERS)
    assert isinstance(error.got, int)
    assert error.got > MOST_CHARACTERS
    # Short answers of the same context are few characters.
    assert work_of(endpoint, asked(20, 1)).pieces


def test_one_questions_best_answer_always_has_room() -> None:
    """Also where each window may have one that is as long as the context."""
    endpoint = for_long_texts("question-answering")
    context = " ".join(f"{at}" * 75 for at in range(100, 900))
    body: dict[str, Any] = {
        "question": "who?", "context": context,
        "parameters": {"max_seq_len": 8, "max_answer_len": 8, "doc_stride": 0},
    }  # fmt: skip
    work = work_of(endpoint, body)
    with pytest.raises(ServingError):
        work_of(endpoint, {**body, "question": ["who?"] * 2})
    assert endpoint.task.render(flat(work), work)["answer"]


def test_what_stands_before_the_context_counts_where_a_window_has_few_spans() -> None:
    """Such an answer begins where the context does, however far away."""
    endpoint = for_long_texts("question-answering")
    body: dict[str, Any] = {
        "question": "who?", "context": "tea " * 4000,
        "parameters": {"top_k": 20, "max_seq_len": 8, "max_answer_len": 8, "doc_stride": 0},
    }  # fmt: skip
    assert isinstance(endpoint.task, QuestionAnswering)
    with pytest.raises(ServingError) as caught:
        work_of(endpoint, body)
    assert caught.value.field == "top_k"
    body["parameters"] |= {"max_answer_len": 2}
    assert work_of(endpoint, body).pieces


def test_long_answers_that_read_the_same_are_one() -> None:
    endpoint = for_long_texts("question-answering")
    word = "q" * 300
    body: dict[str, Any] = {
        "question": "who?", "context": f"{word} x {word.upper()}",
        "parameters": {"top_k": 20, "max_answer_len": 1},
    }  # fmt: skip
    work = work_of(endpoint, body)
    answers = endpoint.task.render(flat(work), work)
    assert [one["answer"] for one in answers].count(word) == 1
    assert word.upper() not in [one["answer"] for one in answers]


def test_labels_that_each_text_repeats_have_a_limit() -> None:
    endpoint = for_long_texts("zero-shot-classification")

    def asked(texts: int, characters: int) -> dict[str, Any]:
        return {"text": ["a"] * texts, "candidate_labels": ["b" * characters], "truncate": True,
                "hypothesis_template": "{}"}  # fmt: skip

    most = 10 * CHARACTERS
    assert work_of(endpoint, asked(1000, most // 1000)).pieces > FEW_PIECES
    assert work_of(endpoint, asked(2, 30)).pieces < FEW_PIECES
    with pytest.raises(ServingError) as caught:
        work_of(endpoint, asked(1000, most // 1000 + 1))
    error = caught.value
    assert (error.kind.status, error.field) == (413, "candidate_labels")
    assert (error.limit, error.got) == (most, most + 1000)


@pytest.mark.parametrize("targets", [None, ["tea", "snow", "room"]], ids=["best", "targets"])
@pytest.mark.parametrize("name", ["bert", "roberta"])
@pytest.mark.filterwarnings("ignore")
def test_many_masks_are_several_rows_and_one_answer(name: str, targets: Any) -> None:
    """In a call every row has as many places as the one with the most, each computed."""
    family = FAMILIES[name]
    endpoint = serve(family, "fill-mask", family.model("masks"))
    mask = family.specials[4]
    texts = [f"tea {' and '.join([mask] * count)} early" for count in (1, 2, 4, 5, 9)]
    parameters: dict[str, Any] = {"top_k": 3} | ({"targets": targets} if targets else {})
    body = {"inputs": texts, "parameters": parameters}
    work = work_of(endpoint, body)
    places = [len(row.extras["mask_positions"]) for row in work.encoded]
    assert places == [1, 2, 4, 4, 1, 4, 4, 1]
    assert max(places) == MOST_IN_A_ROW
    assert sum(len(row.ids) for row in work.encoded) <= work.pieces
    reference = plain(pipeline_of(name, "fill-mask", endpoint.model)(texts, **parameters))
    check_equal("fill-mask", endpoint.answer(body), reference)
