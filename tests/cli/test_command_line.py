"""The lines that messages give: of which stack, and by which program."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from transformer_serving.desk.command_line import STATE_VARIABLE, command_line


@pytest.fixture(autouse=True)
def _no_state_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(STATE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


def test_a_stack_that_a_bare_line_finds_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command_line("down", tmp_path / ".stack") == "transformer-serving down"
    assert command_line("down") == "transformer-serving down"

    other = tmp_path / "another one"
    monkeypatch.setenv(STATE_VARIABLE, "another one")
    assert command_line("down", other) == "transformer-serving down"


def test_any_other_one_is_named_as_a_shell_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "it's another; one"
    found = shlex.split(command_line("up --port-base N", other))
    assert found == ["transformer-serving", "up", "--port-base", "N", "--state", str(other)]

    monkeypatch.setenv(STATE_VARIABLE, str(other))
    assert command_line("up", tmp_path / ".stack").endswith(f" --state {tmp_path / '.stack'}")


def test_the_program_is_named_as_it_was_called_where_its_name_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "a venv" / "bin" / "transformer-serving"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", ["a venv/bin/transformer-serving", "status"])

    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_line("down") == "'a venv/bin/transformer-serving' down"

    monkeypatch.setenv("PATH", str(program.parent))
    assert command_line("down") == "transformer-serving down"

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/x/transformer_serving/desk/cli/__main__.py", "status"])
    assert command_line("down") == "transformer-serving down"
