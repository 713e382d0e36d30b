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
    "fewer dimensions": {"input": TEXTS, "dimensions": 8},
    "a user": {"input": TEXTS, "user": "somebody"},
    "a version": {"input": TEXTS, "model": "sentence-embedding/"},
    "token ids": {"input": [1, 2, 3]},
    "another task": {"input": TEXTS, "model": "fill-mask"},
    "nobody": {"input": TEXTS, "model": "nobody"},
}


@pytest.fixture(scope="module")
def answers(endpoints: Endpoints, environments: Environments) -> Any:
    bodies = {name: {"model": TASK, **body} for name, body in BODIES.items()}
    return environments.ask("openai", "openai_client", **endpoints.given, bodies=bodies, model=TASK)


@pytest.mark.parametrize("case", ["a string", "a list", "floats", "a user", "a version"])
def test_vectors_are_those_of_serve(endpoints: Endpoints, answers: Any, case: str) -> None:
    texts = BODIES[case]["input"]
    served = endpoints.serve(TASK, {"text": texts if isinstance(texts, list) else [texts]})
    answer = answers[case]
    assert [row["index"] for row in answer["data"]] == list(range(len(served)))
    for row, own in zip(answer["data"], served, strict=True):
        np.testing.assert_allclose(row["embedding"], own["embedding"], atol=1e-5)
    assert answer["model"] == BODIES[case].get("model", TASK)
