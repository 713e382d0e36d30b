"""What the SDK makes of a configuration's text, remembered: with the SDK's own parser and task."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
from clearml.utilities import config

from transformer_serving.contract.worker.parsed_sections import parse_sections_once

# What is used of it the SDK does not declare as its own.
module: Any = importlib.import_module("clearml.backend_interface.task.task")
# Of the SDK's own copy of pyhocon.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ENDPOINTS = {
    "one": {"serving_url": "one", "input_size": [[-1, -1], [-1, -1]], "auxiliary_cfg": "a: 1\n"},
    "two/3": {"serving_url": "two", "version": "3", "input_size": [[1]], "auxiliary_cfg": None},
}


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.setattr(module, "text_to_config_dict", config.text_to_config_dict)
    parse_sections_once()
    return lambda text: module.text_to_config_dict(text)


def test_the_answer_is_the_parser_s_own(parse: Callable[[str], Any]) -> None:
    text = config.config_dict_to_text(ENDPOINTS)
    assert parse(text) == parse(text) == config.text_to_config_dict(text) == ENDPOINTS


def test_a_text_is_parsed_once(
    parse: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = config.config_dict_to_text(ENDPOINTS)
    first = parse(text)
    monkeypatch.setattr(vars(config)["ConfigFactory"], "parse_string", None)
    assert parse(text) == first
    with pytest.raises(ValueError, match="Could not parse"):
        parse(text + " ")


def test_who_changes_an_answer_changes_no_other(parse: Callable[[str], Any]) -> None:
    text = config.config_dict_to_text(ENDPOINTS)
    changed = parse(text)
    changed["one"]["input_size"][0].append(7)
    del changed["two/3"]
    assert parse(text) == ENDPOINTS


def test_another_text_gets_another_answer(parse: Callable[[str], Any]) -> None:
    for number in range(40):
        assert parse(config.config_dict_to_text({"one": {"version": number}})) == {
            "one": {"version": number}
        }


def test_a_fault_is_told_each_time(parse: Callable[[str], Any]) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="Could not parse"):
            parse("{ not closed")


def test_done_twice_it_is_done_once(parse: Callable[[str], Any]) -> None:
    done = module.text_to_config_dict
    parse_sections_once()
    assert module.text_to_config_dict is done
