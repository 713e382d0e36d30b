"""openai's client, unmodified, at /v1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import Endpoints
from tests.clients.environments import Environments

ENVIRONMENTS = ("openai",)
TASK = "sentence-embedding"
TEXTS = ["Tea.", "The train left early because of snow."]
BODIES: dict[str, dict[str, Any]] = {
    "a string": {"input": TEXTS[1]},
    "a list": {"input": TEXTS},
    "floats": {"input": TEXTS, "encoding_format": "float"},
    "a user": {"input": TEXTS, "user": "somebody"},
    "another task's vectors": {"input": TEXTS, "model": "sentence-similarity"},
    "fewer dimensions": {"input": TEXTS, "dimensions": 8},
    "too many dimensions": {"input": TEXTS, "dimensions": 800},
    "token ids": {"input": [1, 2, 3]},
    "no text": {"input": []},
    "another task": {"input": TEXTS, "model": "fill-mask"},
    "nobody": {"input": TEXTS, "model": "nobody"},
}


@pytest.fixture(scope="module")
def answers(endpoints: Endpoints, environments: Environments) -> Any:
    bodies = {name: {"model": TASK, **body} for name, body in BODIES.items()}
    return environments.ask(
        "openai",
        "openai_client",
        **endpoints.given,
        bodies=bodies,
        model="fill-mask",
        tei=TASK,
    )


@pytest.mark.parametrize("case", ["a string", "a list", "floats", "a user"])
def test_vectors_are_those_of_serve(endpoints: Endpoints, answers: Any, case: str) -> None:
    texts = BODIES[case]["input"]
    served = endpoints.serve(TASK, {"text": texts if isinstance(texts, list) else [texts]})
    answer = answers[case]
    assert [row["index"] for row in answer["data"]] == list(range(len(served)))
    for row, own in zip(answer["data"], served, strict=True):
        np.testing.assert_allclose(row["embedding"], own["embedding"], atol=1e-5)
    assert answer["model"] == TASK


def test_fewer_dimensions_make_shorter_vectors_of_length_one(
    endpoints: Endpoints, answers: Any
) -> None:
    parameters = {"truncate_dim": 8, "normalize_embeddings": True}
    served = endpoints.serve(TASK, {"text": TEXTS, "parameters": parameters})
    for row, own in zip(answers["fewer dimensions"]["data"], served, strict=True):
        assert np.linalg.norm(row["embedding"]) == pytest.approx(1, abs=1e-5)
        np.testing.assert_allclose(row["embedding"], own["embedding"], atol=1e-5)


def test_a_model_of_another_task_gives_its_vectors_too(endpoints: Endpoints, answers: Any) -> None:
    one, two = (np.array(row["embedding"]) for row in answers["another task's vectors"]["data"])
    body = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    served = endpoints.serve("sentence-similarity", body)["scores"]
    assert served == [pytest.approx(one @ two, abs=1e-4)]


def test_text_embeddings_inferences_own_address_normalizes(
    endpoints: Endpoints, answers: Any
) -> None:
    parameters = {"normalize_embeddings": True}
    served = endpoints.serve(TASK, {"text": TEXTS, "parameters": parameters})
    for row, own in zip(answers["at TEI's"]["data"], served, strict=True):
        np.testing.assert_allclose(row["embedding"], own["embedding"], atol=1e-5)
    refused = answers["TEI refuses"]
    assert (refused["raised"], refused["body"]["type"]) == (
        "UnprocessableEntityError", "Validation",
    )  # fmt: skip


def test_usage_counts_tokens(answers: Any) -> None:
    one, both = answers["a string"]["usage"], answers["a list"]["usage"]
    assert one["prompt_tokens"] == one["total_tokens"] > 2
    assert both["prompt_tokens"] > one["prompt_tokens"]


@pytest.mark.parametrize(
    ("case", "raised", "said"),
    [
        ("too many dimensions", "BadRequestError", "'dimensions'"),
        ("token ids", "BadRequestError", "check_embedding_ctx_length"),
        ("no text", "BadRequestError", "'input'"),
        ("another task", "UnprocessableEntityError", "sentence-embedding"),
        ("nobody", "NotFoundError", "not known"),
        ("no model", "NotFoundError", "not known"),
    ],
)
def test_errors_are_the_clients_own(answers: Any, case: str, raised: str, said: str) -> None:
    assert answers[case]["raised"] == raised
    assert said in answers[case]["body"]["message"]


def test_models_are_listed_and_found(answers: Any) -> None:
    names = {row["id"] for row in answers["models"]["data"]}
    assert names == {"sentence-embedding", "sentence-similarity"}
    found = answers["one model"]
    assert (found["id"], found["object"], found["ready"]) == ("fill-mask", "model", True)
