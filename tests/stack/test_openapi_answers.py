"""/openapi.json as it is served, held against what the endpoints of every task answer.

schemathesis makes the requests: such as the document allows, and such as it does not.
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.stack.conftest import EveryTask, Stack
from tests.stack.shown_tasks import NAMES
from transformer_serving.desk.http import ask_at

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
_EXAMPLES = 20
# What a caller who gives a millisecond is told, and rightly so.
_TOO_LATE = (503, 504)
CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.fixture(scope="module")
def serving(every_task: EveryTask) -> Stack:
    return every_task.stack


@pytest.fixture(scope="module")
def document(serving: Stack) -> Any:
    """Without the length of texts, which tests/gateway/test_openapi.py looks at: texts would be
    that long.
    """
    # An endpoint is ready from its first golden request on, which the gateway sends it by itself.
    serving.until(
        lambda: all(asked(serving, f"/v2/models/{name}/ready") == 200 for name in NAMES.values()),
        "every endpoint is ready",
    )
    with urllib.request.urlopen(f"{address(serving)}/openapi.json", timeout=30) as answer:
        read = json.loads(answer.read(), object_hook=_without_length)
    schema = schemathesis.openapi.from_dict(read)
    schema.validate()
    return schema


def _without_length(found: dict[str, Any]) -> dict[str, Any]:
    found.pop("maxLength", None)
    return found


def asked(stack: Stack, path: str) -> int:
    return ask_at(f"127.0.0.1:{stack.base}", path, timeout_s=30).status


def address(stack: Stack) -> str:
    return f"http://127.0.0.1:{stack.base}"


def operations(document: Any) -> dict[str, Any]:
    found = [made.ok() for made in document.get_all_operations()]
    return {f"{one.method.upper()} {one.path}": one for one in found}


def ask(operation: Any, base_url: str, mode: GenerationMode) -> None:
    @hypothesis.seed(7)
    @hypothesis.settings(
        max_examples=_EXAMPLES, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        response = case.call(base_url=base_url, timeout=30)
        status = response.status_code
        in_time = not (isinstance(case.body, dict) and case.body.get("timeout_ms"))
        assert status < 500 or (status in _TOO_LATE and not in_time), response.text[:500]
        # What was refused, with any status, was not taken.
        more = [negative_data_rejection] if status < 400 else []
        case.validate_response(response, checks=[*CHECKS, *more])

    one()


def test_every_operation_answers_as_the_document_says(document: Any, serving: Stack) -> None:
    found = operations(document)
    assert {f"POST /serve/{name}" for name in NAMES.values()} <= set(found)
    for operation in found.values():
        ask(operation, address(serving), GenerationMode.POSITIVE)


def test_what_the_document_forbids_is_refused(document: Any, serving: Stack) -> None:
    found = operations(document)
    for name in NAMES.values():
        ask(found[f"POST /serve/{name}"], address(serving), GenerationMode.NEGATIVE)


def test_every_example_is_answered(document: Any, serving: Stack) -> None:
    paths = document.raw_schema["paths"]
    for name in NAMES.values():
        content = paths[f"/serve/{name}"]["post"]["requestBody"]["content"]
        status, _ = serving.post(name, content["application/json"]["example"])
        assert status == 200, name
