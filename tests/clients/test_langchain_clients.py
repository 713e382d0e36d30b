"""langchain-openai and langchain-cohere, unmodified."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import Endpoints
from tests.clients.environments import Environments

ENVIRONMENTS = ("langchain",)
TEXTS = ["A small warm room.", "The train left early because of snow.", "Tea and an old piano."]
QUERY = "When did the train leave?"


@pytest.fixture(scope="module")
def answers(endpoints: Endpoints, environments: Environments) -> Any:
    return environments.ask(
        "langchain", "langchain_clients", **endpoints.given, embedding="sentence-embedding",
        rerank="rerank", texts=TEXTS, query=QUERY,
    )  # fmt: skip


def test_embeddings_are_those_of_serve(endpoints: Endpoints, answers: Any) -> None:
    served = endpoints.serve("sentence-embedding", {"text": [QUERY, *TEXTS]})
    vectors = [row["embedding"] for row in served]
    np.testing.assert_allclose(answers["query"], vectors[0], atol=1e-5)
    np.testing.assert_allclose(answers["documents"], vectors[1:], atol=1e-5)


def test_the_default_sends_token_ids_and_is_told_the_option(answers: Any) -> None:
    assert "check_embedding_ctx_length" in answers["refused"]["message"]
    assert answers["refused"]["param"] == "input"


def test_ranks_are_those_of_serve(endpoints: Endpoints, answers: Any) -> None:
    served = endpoints.serve("rerank", {"query": QUERY, "texts": TEXTS})[:2]
    assert [row["index"] for row in answers["rerank"]] == [row["index"] for row in served]
    scores = [row["relevance_score"] for row in answers["rerank"]]
    assert scores == pytest.approx([row["score"] for row in served], abs=1e-5)
    assert [row["text"] for row in answers["compressed"]] == [TEXTS[row["index"]] for row in served]
