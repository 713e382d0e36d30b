"""Sections of a ClearML task's configuration, parsed once and not at every look, and as they stand.

The SDK keeps a section as HOCON text and has pyparsing read it whenever it is asked for: 40 ms of
processor time for two endpoints. Workers and the controller ask every few seconds, of texts that
are hardly ever others.

HOCON also puts variables of the environment in the place of `${NAME}`, and files and answers of
other servers in the place of `include`, and whoever may edit the task would read them where names
and models are told. clearml-serving writes neither, so a text that has either is refused.

Tested by tests/contract/test_parsed_sections.py.
"""

from __future__ import annotations

import copy
import importlib
from functools import lru_cache, wraps
from importlib.util import find_spec, module_from_spec
from typing import Any, NoReturn

# Five sections a look, and those before a change.
_KEPT = 16
_PARSER = "clearml.utilities.pyhocon.config_parser"


class SectionFault(ValueError):
    """A section that is not read; the text says which where `name` does."""

    def __init__(self, why: str, name: str | None = None) -> None:
        section = "a section" if name is None else f"section '{name}'"
        super().__init__(f"{section} of the task's configuration {why}")
        self.why = why


class SectionRefused(SectionFault):
    """A section that asks for something of the machine that reads it."""


def parse_sections_once() -> None:
    """From now on the SDK's tasks of this process remember what they parsed; once is enough.

    They raise SectionFault for a text that is none, of it SectionRefused for a substitution or an
    include. It says where that is, as far as the parser does.
    """
    module: Any = importlib.import_module("clearml.backend_interface.task.task")
    before = module.text_to_config_dict
    if hasattr(before, "__wrapped__"):
        return
    # What it leans on in the SDK is missed at the start then, and not at the first look.
    _parser()

    @wraps(before)
    def text_to_config_dict(text: str) -> Any:
        return parsed_section(text)

    module.text_to_config_dict = text_to_config_dict
    _name_sections(module.Task)


def parsed_section(text: str) -> Any:
    """What a section's text says, for who asks to keep. Raises SectionFault, as above."""
    return copy.deepcopy(_parsed(text))


@lru_cache(maxsize=_KEPT)
def _parsed(text: str) -> Any:
    unquoted: Any = importlib.import_module("clearml.utilities.dicts").hocon_unquote_key
    try:
        return unquoted(_parser().parse(text))
    except SectionRefused:
        raise
    except Exception as error:
        # Theirs quotes all of the text.
        line, column = getattr(error, "lineno", None), getattr(error, "column", None)
        place = "" if line is None else f" at line {line}, column {column}"
        raise SectionFault(f"could not be parsed{place} ({type(error).__name__})") from None


def _name_sections(task_class: Any) -> None:
    """Its texts are parsed where nobody knows their names."""
    unnamed = task_class._get_configuration_dict

    @wraps(unnamed)
    def _get_configuration_dict(self: Any, name: str) -> Any:
        try:
            return unnamed(self, name)
        except SectionFault as fault:
            raise type(fault)(fault.why, name) from None

    task_class._get_configuration_dict = _get_configuration_dict


@lru_cache(maxsize=1)
def _parser() -> Any:
    """The SDK's own, as a module of its own: where it comes upon either, it is refused.

    What looked at the text before it would have to know each of its strings and comments.
    """
    found = find_spec(_PARSER)
    assert found is not None
    assert found.loader is not None
    module: Any = module_from_spec(found)
    found.loader.exec_module(module)
    module.ConfigSubstitution = _substitution
    module.ConfigFactory = _Include
    return module.ConfigParser


def _substitution(_: str, __: bool, ___: str, text: str | bool, at: int) -> NoReturn:
    # Of += they have no text, and where the mapping begins that it is in.
    place = f" at line {text.count(chr(10), 0, at) + 1}" if isinstance(text, str) else ""
    raise SectionRefused(
        f"has ${{...}} or +={place}, whose value may be one of the environment of this machine; "
        "write the value itself, or in quotes"
    )


class _Include:
    """In the place of the SDK's reader of files and addresses."""

    @staticmethod
    def parse_file(*_: Any, **__: Any) -> NoReturn:
        raise SectionRefused(
            "has an include, which would be read from this machine or by it; write there what it "
            "includes"
        )

    parse_URL = parse_file
