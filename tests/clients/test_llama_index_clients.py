"""llama-index, unmodified: its client of text-embeddings-inference, and its OpenAI-like one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.clients.conftest import Endpoints
from tests.clients.environments import Environments

ENVIRONMENTS = ("llama-index",)
TEXTS = ["A small warm room.", "The train left early because of snow.", "tea " * 200]
QUERY = "When did the train leave?"


@pytest.fixture(scope="module")
def answers(endpoints: Endpoints, environments: Environments) -> Any:
    return environments.ask(
        "llama-index", "llama_index_clients", **endpoints.given, embedding="sentence-embedding",
        texts=TEXTS, query=QUERY,
    )  # fmt: skip


@pytest.mark.parametrize("client", ["tei", "openai"])
def test_embeddings_are_those_of_serve(endpoints: Endpoints, answers: Any, client: str) -> None:
    served = endpoints.serve("sentence-embedding", {"text": [QUERY, *TEXTS], "truncate": True})
    vectors = [row["embedding"] for row in served]
    found = answers[client]
    np.testing.assert_allclose(found["query"], vectors[0], atol=1e-5)
    np.testing.assert_allclose(found["texts"], vectors[1:], atol=1e-5)
    np.testing.assert_allclose(found["later"], vectors[1:], atol=1e-5)
