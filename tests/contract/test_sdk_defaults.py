"""The SDK's defaults are what they were, without their comments; with the SDK's own parser."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import clearml
import pytest
from pyparsing import ParserElement

from transformer_serving.contract.worker.sdk_defaults import parse_defaults_without_comments

# What is used of it the SDK does not declare as its own.
module: Any = importlib.import_module("clearml.backend_config.config")
# Of the SDK's own copy of pyhocon.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

OWN = Path(clearml.__file__).parent
DEFAULTS = sorted(OWN.glob("**/config/default/*.conf"))
theirs = module.Config._read_single_file


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:
    monkeypatch.setattr(module.Config, "_read_single_file", staticmethod(theirs))
    parse_defaults_without_comments()
    parse_defaults_without_comments()
    return lambda path: module.Config._read_single_file(str(path), verbose=False)


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that their parser is given."""
    texts = list[str]()
    parse = ParserElement.parse_string

    def noted(self: Any, text: str, *rest: Any, **named: Any) -> Any:
        texts.append(text)
        return parse(self, text, *rest, **named)

    monkeypatch.setattr(ParserElement, "parse_string", noted)
    monkeypatch.setattr(ParserElement, "parseString", noted)
    return texts


def test_the_sdk_brings_its_defaults_as_files() -> None:
    assert {path.name for path in DEFAULTS} >= {"api.conf", "sdk.conf"}


@pytest.mark.parametrize("path", DEFAULTS, ids=[str(path.relative_to(OWN)) for path in DEFAULTS])
def test_they_are_what_they_are_with_their_comments(
    read: Callable[[Path], Any], path: Path, parsed: list[str]
) -> None:
    found = read(path)
    assert parsed
    assert not any(line.lstrip().startswith("#") for text in parsed for line in text.splitlines())
    assert found == getattr(theirs, "__wrapped__", theirs)(str(path), verbose=False)


def test_a_file_of_the_users_own_is_read_as_it_stands(
    read: Callable[[Path], Any], tmp_path: Path
) -> None:
    path = tmp_path / "clearml.conf"
    path.write_text('a: """one\n# no comment\n"""\nb: 2 # a comment\n')
    assert read(path) == {"a": "one\n# no comment\n", "b": 2}


def test_where_it_is_asked_for_each_file_is_named(
    read: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.Config._read_single_file(str(DEFAULTS[0]), verbose=True) == read(DEFAULTS[0])
    assert f"Loading config from file {DEFAULTS[0]}\n" in capsys.readouterr().out


def test_one_that_is_not_there_is_empty(read: Callable[[Path], Any]) -> None:
    assert not read(OWN / "none.conf")
