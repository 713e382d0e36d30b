"""Requests of the real SDK are held against their schemas, which are checked once each."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from clearml.backend_api.services import tasks
from jsonschema.exceptions import SchemaError, ValidationError

from transformer_serving.contract.worker.sdk_schemas import check_schemas_once

# What is used of it the SDK does not declare as its own.
module: Any = importlib.import_module("clearml.backend_api.session.datamodel")
theirs = module._CustomValidator.check_schema


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The schemas that jsonschema was given to check."""
    schemas = list[Any]()
    check = getattr(theirs, "__wrapped__", theirs)

    def noted(schema: Any, *rest: Any, **named: Any) -> None:
        schemas.append(schema)
        check(schema, *rest, **named)

    monkeypatch.setattr(module._CustomValidator, "check_schema", staticmethod(noted))
    check_schemas_once()
    check_schemas_once()
    return schemas


def test_a_schema_is_checked_at_its_first_request_alone(checked: list[Any]) -> None:
    for number in range(3):
        tasks.GetAllRequest(page=number, page_size=1, only_fields=["id"]).validate()
        tasks.PingRequest(task="a").validate()
    assert checked == [tasks.GetAllRequest._schema, tasks.PingRequest._schema]


def test_each_request_is_held_against_it(checked: list[Any]) -> None:
    for _ in range(2):
        with pytest.raises(ValidationError, match="'page_size' is a dependency of 'page'"):
            tasks.GetAllRequest(page=0).validate()
    assert checked == [tasks.GetAllRequest._schema]


def test_one_that_is_wrong_is_refused_each_time(checked: list[Any]) -> None:
    wrong = {"type": "no such type"}
    for _ in range(2):
        with pytest.raises(SchemaError):
            tasks.PingRequest(task="a").validate(wrong)
    assert checked == [wrong, wrong]
