"""What the SDK makes of a configuration's text, remembered: with the SDK's own parser and task."""

from __future__ import annotations

import http.server
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clearml.utilities import config
from pyparsing import ParserElement

from tests.test_http import Echo, serving
from transformer_serving.contract.worker.parsed_sections import SectionRefused, parse_sections_once

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
    asked = module.Task._get_configuration_dict
    monkeypatch.setattr(module.Task, "_get_configuration_dict", asked)
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
    # Each parser of theirs begins with it.
    monkeypatch.setattr(ParserElement, "setDefaultWhitespaceChars", None)
    assert parse(text) == first
    with pytest.raises(ValueError, match="could not be parsed"):
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
        with pytest.raises(ValueError, match="could not be parsed"):
            parse("{ not closed s3cret")
    with pytest.raises(ValueError, match="could not be parsed") as fault:
        parse("{ not closed s3cret")
    assert "s3cret" not in str(fault.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("one { }\n\n  { s3cret", "could not be parsed at line 3, column "),
        ("one {\n\ta = 1\n\tb = ${S3CRET}\n}", "has ${...} or += at line 3, whose value may be "),
        ("one = [1]\none += s3cret", "has ${...} or +=, whose value may be "),
        ('one = 1\ninclude "s3cret"', "has an include, "),
    ],
    ids=["broken", "substitution", "addition", "include"],
)
def test_a_fault_says_which_section_it_is_in_and_where(
    parse: Callable[[str], Any], text: str, said: str
) -> None:
    class Task(module.Task):  # type: ignore[misc]
        def _get_configuration_text(self, name: str) -> str:
            return text

    task = Task.__new__(Task)
    with pytest.raises(ValueError, match="section") as fault:
        task.get_configuration_object_as_dict("endpoints")
    assert str(fault.value).startswith(f"section 'endpoints' of the task's configuration {said}")
    with pytest.raises(ValueError, match="section") as unnamed:
        parse(text)
    assert str(unnamed.value).startswith(f"a section of the task's configuration {said}")
    assert type(unnamed.value) is type(fault.value)
    assert "s3cret" not in str(fault.value).lower()


def test_done_twice_it_is_done_once(parse: Callable[[str], Any]) -> None:
    done = module.text_to_config_dict
    parse_sections_once()
    assert module.text_to_config_dict is done


SUBSTITUTIONS = (
    "one {{ model_id = ${{{0}}} }}",
    'one {{ model_id: "a" ${{?{0}}} "b" }}',
    "one.input_size = [1, ${{{0}}}]",
    "one = ${{{0}}}\none = 1",
    "{0} += [1]",
    "{0} += x",
    """one = \"\"\"a\nb\"\"\" ${{{0}}}""",
    "${{{0}}}",
)


@pytest.mark.parametrize("text", SUBSTITUTIONS, ids=range(len(SUBSTITUTIONS)))
def test_nothing_is_taken_from_the_environment(
    parse: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("OF_THE_CONTAINER", "s3cret")
    with pytest.raises(ValueError, match=r"section of the task's configuration") as fault:
        parse(text.format("OF_THE_CONTAINER"))
    # The last is no section, wherever it came from.
    assert isinstance(fault.value, SectionRefused) or text == SUBSTITUTIONS[-1]
    assert "s3cret" not in str(fault.value)


INCLUDES = (
    'include "{}"',
    'include file("{}")',
    'include required(file("{}"))',
    'one {{ include "{}" }}',
    'one = [ include "{}" ]',
    'one = a include "{}"',
    'include url("{}")',
    'INCLUDE required(url("{}"))',
)


@pytest.mark.parametrize("text", INCLUDES, ids=range(len(INCLUDES)))
def test_no_file_is_read_and_no_server_asked(
    parse: Callable[[str], Any], tmp_path: Path, text: str
) -> None:
    asked: list[str] = []

    class Told(Echo):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

    (tmp_path / "secret").write_text('of_the_container = "s3cret"')
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Told)) as server:
        url = f"http://127.0.0.1:{server.server_port}/200"
        for address in (str(tmp_path / "secret"), (tmp_path / "secret").as_uri(), url):
            with pytest.raises(SectionRefused, match="has an include"):
                parse(text.format(address))
    assert asked == []


def test_what_only_looks_like_either_is_text(parse: Callable[[str], Any]) -> None:
    """In quotes and in comments, and under names that clearml-serving may be given."""
    said = {
        "one": {"auxiliary_cfg": '${HOME}\ninclude "/etc/passwd" a += b', "model_id": "${HOME}"},
        "include": {"include": "include file", "a": ["${HOME}", "include"]},
    }
    text = config.config_dict_to_text(said)
    assert parse(text) == config.text_to_config_dict(text) == said
    text = config.config_dict_to_text({"a.$b": {"${HOME}": 'include "a"'}})
    assert parse(text) == config.text_to_config_dict(text)
    assert parse('# ${HOME} include "a"\none = 1 // ${HOME}\n// include "b"\n') == {"one": 1}


def test_other_texts_of_the_process_are_parsed_as_before(parse: Callable[[str], Any]) -> None:
    """clearml.conf may have either."""
    found = vars(config)["ConfigFactory"].parse_string("one = ${?NEVER_SET}\ntwo = 2")
    assert dict(found) == {"two": 2}
