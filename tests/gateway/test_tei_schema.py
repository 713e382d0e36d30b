"""text-embeddings-inference's own openapi.json, held against /tei/NAME.

tei_openapi.json is docs/openapi.json of its release 1.9.3 (Apache-2.0) without /decode;
schemathesis makes the requests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.gateway.conftest import Server

DOCUMENT = json.loads(Path(__file__).with_name("tei_openapi.json").read_text())
CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]
FOUND: list[Any] = list(schemathesis.openapi.from_dict(DOCUMENT).get_all_operations())
OPERATIONS = {f"{one.ok().method.upper()} {one.ok().path}": one.ok() for one in FOUND}
# Its own server calls the error's type `type`, as here; its document does not.
MISNAMED = "POST /v1/embeddings"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["texts", "vectors", "ranked"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_answers_are_those_of_the_document(text_gateway: Server, operation: str, name: str) -> None:
    address = f"http://127.0.0.1:{text_gateway.port}/tei/{name}"

    @hypothesis.seed(7)
    @hypothesis.settings(
        max_examples=6, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(OPERATIONS[operation].as_strategy(generation_mode=GenerationMode.POSITIVE))
    def one(case: Any) -> None:
        response = case.call(base_url=address, timeout=30)
        if operation == MISNAMED and response.status_code != 200:
            assert set(response.json()) == {"message", "code", "type"}
            assert response.status_code in (400, 413, 422, 424)
        else:
            case.validate_response(response, checks=CHECKS)

    one()


def test_what_it_answers_is_asked(text_gateway: Server) -> None:
    """The made-up requests above may all have been refused."""
    asked: dict[str, dict[str, Any]] = {
        "vectors": {
            "embed": {"inputs": "tea"}, "similarity": {
                "inputs": {"source_sentence": "tea", "sentences": ["rain"]},
            }, "tokenize": {"inputs": "tea"}, "v1/embeddings": {"input": "tea"},
        },
        "texts": {"predict": {"inputs": "tea"}},
        "ranked": {"rerank": {"query": "tea", "texts": ["a kettle", "rain"]}},
    }  # fmt: skip
    for name, bodies in asked.items():
        for path, body in bodies.items():
            raw = json.dumps(body).encode()
            assert text_gateway.ask("POST", f"/tei/{name}/{path}", raw).status == 200, path
