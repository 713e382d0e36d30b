"""huggingface_hub's InferenceClient, unmodified, at /hf/NAME: each method of our tasks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import Endpoints
from tests.clients.environments import Environments
from tests.preprocess.answers.comparison import check_equal

ENVIRONMENTS = ("huggingface",)
TEXT = "The train left early because of snow."
MASKED = f"{TEXT} <mask>"
LABELS = ["travel", "music"]
QUESTION = {"question": "Why?", "context": TEXT}
PAIR = {"sentence": TEXT, "other_sentences": ["Tea.", "Snow fell."]}
# The endpoint, the method, what it is given.
CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "labels": ("text-classification", "text_classification", {"text": TEXT}),
    "best label": (
        "text-classification", "text_classification",
        {"text": TEXT, "top_k": 1, "function_to_apply": "sigmoid"},
    ),
    "entities": ("token-classification", "token_classification", {"text": TEXT}),
    "tokens": (
        "token-classification", "token_classification",
        {"text": TEXT, "aggregation_strategy": "none", "ignore_labels": []},
    ),
    "answer": ("question-answering", "question_answering", QUESTION),
    "answers": ("question-answering", "question_answering", {**QUESTION, "top_k": 3}),
    "fillings": ("fill-mask", "fill_mask", {"text": MASKED}),
    "targets": ("fill-mask", "fill_mask", {"text": MASKED, "targets": ["a", "b"], "top_k": 2}),
    "zero-shot": (
        "zero-shot-classification", "zero_shot_classification",
        {"text": TEXT, "candidate_labels": LABELS},
    ),
    "many labels": (
        "zero-shot-classification", "zero_shot_classification",
        {
            "text": TEXT, "candidate_labels": LABELS, "multi_label": True,
            "hypothesis_template": "About {}.",
        },
    ),
    "vector": ("sentence-embedding", "feature_extraction", {"text": TEXT}),
    "raw vector": (
        "sentence-embedding", "feature_extraction", {"text": TEXT, "normalize": False},
    ),
    "short vector": (
        "sentence-embedding", "feature_extraction",
        {"text": TEXT, "normalize": True, "truncate": True, "dimensions": 8},
    ),
    "vectors": ("sentence-embedding", "feature_extraction", {"text": [TEXT, "Tea."]}),
    "token vectors": ("feature-extraction", "feature_extraction", {"text": TEXT}),
    "similarity": ("sentence-similarity", "sentence_similarity", PAIR),
    "no prompt": (
        "sentence-embedding", "feature_extraction", {"text": TEXT, "prompt_name": "nobody"},
    ),
    "nobody": ("nobody", "fill_mask", {"text": MASKED}),
    "well": ("sentence-embedding", "health_check", {}),
    "nobody's health": ("nobody", "health_check", {}),
    "about": ("sentence-embedding", "get_endpoint_info", {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(endpoints: Endpoints, environments: Environments) -> Any:
    return environments.ask("huggingface", "huggingface_client", **endpoints.given, calls=CALLS)


# The answer of /serve to the same question, and how the client holds it.
SAME: dict[str, dict[str, Any]] = {
    "labels": {"text": TEXT, "parameters": {"top_k": 2}},
    "best label": {"inputs": TEXT, "parameters": {"top_k": 1, "function_to_apply": "sigmoid"}},
    "entities": {"text": TEXT, "parameters": {"aggregation_strategy": "simple"}},
    "answer": QUESTION,
    "answers": {**QUESTION, "parameters": {"top_k": 3}},
    "fillings": {"text": MASKED},
    "targets": {"text": MASKED, "parameters": {"targets": ["a", "b"], "top_k": 2}},
    "token vectors": {"inputs": TEXT},
}


@pytest.mark.parametrize("case", SAME)
def test_answers_are_those_of_serve(endpoints: Endpoints, answers: Any, case: str) -> None:
    task = CALLS[case][0]
    check_equal(task, answers[case], endpoints.serve(task, SAME[case]))


def test_tokens_are_those_of_serve(endpoints: Endpoints, answers: Any) -> None:
    body = {"text": TEXT, "parameters": {"aggregation_strategy": "none", "ignore_labels": []}}
    served = endpoints.serve("token-classification", body)
    # The client's class has no place for a token's number.
    known = [{name: row[name] for name in row if name != "index"} for row in served]
    found = [{name: row[name] for name in row if name != "index"} for row in answers["tokens"]]
    check_equal("token-classification", found, known)


@pytest.mark.parametrize("case", ["zero-shot", "many labels"])
def test_zero_shot_gives_rows(endpoints: Endpoints, answers: Any, case: str) -> None:
    served = endpoints.serve("zero-shot-classification", dict(CALLS[case][2]))
    rows = [
        {"label": label, "score": score}
        for label, score in zip(served["labels"], served["scores"], strict=True)
    ]
    check_equal("zero-shot-classification", answers[case], rows)


def test_vectors_are_rows_also_of_one_text(endpoints: Endpoints, answers: Any) -> None:
    texts = [TEXT, "Tea."]
    served = [row["embedding"] for row in endpoints.serve("sentence-embedding", {"text": texts})]
    of_length_one = served / np.linalg.norm(served, axis=1, keepdims=True)
    np.testing.assert_allclose(answers["vectors"], of_length_one, atol=1e-5)
    np.testing.assert_allclose(answers["vector"], of_length_one[:1], atol=1e-5)
    np.testing.assert_allclose(answers["raw vector"], served[:1], atol=1e-5)
    short = np.array(served[:1])[:, :8]
    np.testing.assert_allclose(answers["short vector"], short / np.linalg.norm(short), atol=1e-5)


def test_similarity_is_a_list_of_scores(endpoints: Endpoints, answers: Any) -> None:
    body = {"source_sentence": TEXT, "sentences": PAIR["other_sentences"]}
    served = endpoints.serve("sentence-similarity", body)
    assert answers["similarity"] == pytest.approx(served["scores"], abs=1e-5)


def test_health_and_information_are_the_endpoints(answers: Any) -> None:
    assert (answers["well"], answers["nobody's health"]) == (True, False)
    assert answers["about"]["model_id"] == "sentence-embedding"
    assert "embedding" in answers["about"]["model_type"]


@pytest.mark.parametrize(("case", "said"), [("no prompt", "prompt"), ("nobody", "not known")])
def test_errors_are_the_clients_own(answers: Any, case: str, said: str) -> None:
    # The class of 400, of 404 the one above it.
    assert answers[case]["raised"] in ("BadRequestError", "HfHubHTTPError")
    assert said in answers[case]["message"]
