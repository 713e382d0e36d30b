"""cohere's clients, v1 and v2, unmodified."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.conftest import Endpoints
from tests.clients.environments import Environments

ENVIRONMENTS = ("cohere",)
TEXTS = ["A small warm room.", "The train left early because of snow.", "Tea and an old piano."]
QUERY = "When did the train leave?"
OBJECTS = [{"text": text, "page": at} for at, text in enumerate(TEXTS)]
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "v1": ("v1", {"documents": TEXTS}),
    "v2": ("v2", {"documents": TEXTS}),
    "best two": ("v2", {"documents": TEXTS, "top_n": 2}),
    "objects": ("v1", {"documents": OBJECTS, "return_documents": True}),
    "strings": ("v1", {"documents": TEXTS, "return_documents": True}),
    "a long text": ("v2", {"documents": ["tea " * 500, TEXTS[0]], "max_tokens_per_doc": 512}),
    "no number": ("v1", {"documents": TEXTS, "top_n": 0}),
    "no documents": ("v2", {"documents": []}),
    "another task": ("v2", {"documents": TEXTS, "model": "fill-mask"}),
    "nobody": ("v1", {"documents": TEXTS, "model": "nobody"}),
}


@pytest.fixture(scope="module")
def answers(endpoints: Endpoints, environments: Environments) -> Any:
    bodies = {
        name: (version, {"model": "rerank", "query": QUERY, **body})
        for name, (version, body) in BODIES.items()
    }
    return environments.ask("cohere", "cohere_client", **endpoints.given, bodies=bodies)


@pytest.mark.parametrize("case", ["v1", "v2", "best two", "objects", "strings"])
def test_ranks_are_those_of_serve(endpoints: Endpoints, answers: Any, case: str) -> None:
    top = BODIES[case][1].get("top_n")
    served = endpoints.serve("rerank", {"query": QUERY, "texts": TEXTS})[:top]
    results = answers[case]["results"]
    assert [row["index"] for row in results] == [row["index"] for row in served]
    scores = [row["relevance_score"] for row in results]
    assert scores == pytest.approx([row["score"] for row in served], abs=1e-5)
    assert answers[case]["meta"]["api_version"]["version"] in ("1", "2")
    assert answers[case]["id"]


def test_documents_come_back_where_they_are_asked_for(answers: Any) -> None:
    for row in answers["objects"]["results"]:
        assert row["document"] == OBJECTS[row["index"]]
    for row in answers["strings"]["results"]:
        assert row["document"]["text"] == TEXTS[row["index"]]
    assert not any(row.get("document") for row in answers["v1"]["results"])


def test_a_text_that_is_too_long_is_cut(answers: Any) -> None:
    assert len(answers["a long text"]["results"]) == 2


@pytest.mark.parametrize(
    ("case", "raised", "said"),
    [
        ("no number", "BadRequestError", "'top_n'"),
        ("no documents", "BadRequestError", "'documents'"),
        ("another task", "UnprocessableEntityError", "rerank"),
        ("nobody", "NotFoundError", "not known"),
    ],
)
def test_errors_are_the_clients_own(answers: Any, case: str, raised: str, said: str) -> None:
    assert answers[case]["raised"] == raised
    assert said in answers[case]["body"]["message"]
