"""What of each task's answer is compared, whether it was asked of one text or of several."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from preprocess.answers import TASKS
from preprocess.answers.embedding import FeatureExtraction
from preprocess.answers.entities import TokenClassification
from preprocess.answers.fill_mask import FillMask
from preprocess.answers.gist import best_first
from preprocess.answers.question import QuestionAnswering
from preprocess.answers.ranking import Rerank
from preprocess.answers.zero_shot import ZeroShotClassification
from transformer_serving.contract.endpoint import read_endpoint

ENTITY = {"entity": "PER", "score": 0.9, "index": 1, "word": "Ann", "start": 0, "end": 3}
GROUP = {"entity_group": "LOC", "score": 0.9, "word": "Rome", "start": 4, "end": 8}
FIRST, SECOND = {"token_str": "tea", "score": 0.9}, {"token_str": "fog", "score": 0.1}
BEST, NEXT = {"answer": "rain", "score": 0.8}, {"answer": "wind", "score": 0.1}
LABELS = {"sequence": "a", "labels": ["x", "y"], "scores": [0.9, 0.1]}


def gist(task: type[Any], answer: Any, *, many: bool = False, contexts: int = 1) -> Any:
    work = SimpleNamespace(request=SimpleNamespace(many=many), context=[None] * contexts)
    return task.gist(object.__new__(task), answer, (), work)


@pytest.mark.parametrize(
    ("answer", "many", "found"),
    [
        ([ENTITY, GROUP], False, [[("PER", 0, 3), ("LOC", 4, 8)]]),
        ([[ENTITY], []], True, [[("PER", 0, 3)], []]),
    ],
)
def test_of_entities_labels_and_places(answer: Any, many: bool, found: Any) -> None:
    assert gist(TokenClassification, answer, many=many) == ("words", found)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ([FIRST, SECOND], ["tea"]),
        ([[FIRST, SECOND], [SECOND]], ["tea", "fog"]),
        ([[[FIRST], [SECOND]], [FIRST]], ["tea", "fog", "tea"]),
    ],
)
def test_of_masks_the_best_proposals(answer: Any, found: list[str]) -> None:
    assert gist(FillMask, answer) == ("words", found)


@pytest.mark.parametrize(
    ("answer", "contexts", "found"),
    [
        (BEST, 1, ["rain"]),
        ([BEST, NEXT], 1, ["rain"]),
        ([[BEST, NEXT]], 1, ["rain"]),
        ([BEST, NEXT], 2, ["rain", "wind"]),
        ([[BEST, NEXT], [NEXT]], 2, ["rain", "wind"]),
        ([], 1, [""]),
    ],
)
def test_of_questions_the_best_answers(answer: Any, contexts: int, found: list[str]) -> None:
    assert gist(QuestionAnswering, answer, contexts=contexts) == ("words", found)


def test_of_labels_and_texts_their_order() -> None:
    one = (["x", "y"], [0.9, 0.1])
    assert gist(ZeroShotClassification, LABELS) == ("ranked", [one])
    assert gist(ZeroShotClassification, [LABELS, LABELS], many=True) == ("ranked", [one, one])
    rows = [{"index": 3, "score": 2.0}, {"index": 1, "score": 1.0, "text": "a"}]
    assert gist(Rerank, rows) == ("ranked", [([3, 1], [2.0, 1.0])])
    assert best_first([1.0, 3.0, 2.0]) == ([1, 2, 0], [3.0, 2.0, 1.0])


def test_of_texts_the_best_labels(endpoint_fields: dict[str, Any]) -> None:
    task = TASKS["text-classification"](read(endpoint_fields))
    rows = [(np.array([0.0, 1.0], np.float32),), (np.array([2.0, 1.0], np.float32),)]
    kind, found = task.gist(None, rows, SimpleNamespace())  # type: ignore[arg-type]
    labels = read(endpoint_fields).classification.labels
    assert (kind, found) == ("words", [labels[1], labels[0]])


def read(fields: dict[str, Any]) -> Any:
    return read_endpoint(json.dumps(fields).encode())


def test_of_features_every_tokens_vector() -> None:
    task = object.__new__(FeatureExtraction)
    rows = [(np.full((2, 4), 3.0, np.float16),), (np.ones((1, 4), np.float32),)]
    kind, found = task.gist(None, rows, SimpleNamespace())  # type: ignore[arg-type]
    assert (kind, found.shape) == ("directions", (3, 4))
    assert np.allclose(np.linalg.norm(found, axis=-1), 1)


def test_every_task_has_one() -> None:
    assert all(callable(getattr(task, "gist", None)) for task in TASKS.values())
