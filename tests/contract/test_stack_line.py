"""A line that a part of a stack tells names the stack."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from transformer_serving.contract.stack_line import MARK, stack_line


def test_a_part_names_its_own_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "/w/it's one; here")
    words = ["transformer-serving", "rollback", "texts", "--state", "/w/it's one; here"]
    assert shlex.split(stack_line("rollback texts")) == words


def test_a_part_of_none_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)
    assert stack_line("rollback texts") == "transformer-serving rollback texts"


def test_a_folder_is_named_as_any_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = f"transformer-serving down --state {tmp_path / 'state'}"
    assert stack_line("down", Path("state")) == line
