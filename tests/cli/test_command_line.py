"""The lines that messages give: of which stack, and by which program."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

import transformer_serving
from transformer_serving import desk
from transformer_serving.contract.pip_line import pip_line
from transformer_serving.desk.command_line import STATE_VARIABLE, command_line

DESK = Path(desk.__file__).parent
# What they write is read by whoever has no command before it.
WRITERS = {"bundle/preprocess_file.py", "compose/variables.py"}
# What they name is installed where Triton runs.
ELSEWHERE = {"engine/backends/torch_text/model.py", "contract/gate/torch_engine.py"}


@pytest.fixture(autouse=True)
def _no_state_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(STATE_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


def test_the_default_stack_is_not_named(tmp_path: Path) -> None:
    assert command_line("down", tmp_path / ".stack") == "transformer-serving down"
    assert command_line("down") == "transformer-serving down"


def test_any_other_one_is_named_as_a_shell_reads_it(tmp_path: Path) -> None:
    other = tmp_path / "it's another; one"
    found = shlex.split(command_line("up --port-base N", other))
    assert found == ["transformer-serving", "up", "--port-base", "N", "--state", str(other)]


def test_so_is_each_where_a_variable_names_one_maybe_for_this_command_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    monkeypatch.setenv(STATE_VARIABLE, str(other))
    for state in (other, tmp_path / ".stack"):
        assert command_line("up", state) == f"transformer-serving up --state {state}"


def test_so_is_each_in_a_working_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "argv", ["venv/bin/transformer-serving", "status"])
    line = command_line("up", tmp_path / ".stack")
    assert line == f"venv/bin/transformer-serving up --state {tmp_path / '.stack'}"


def test_the_program_is_named_as_it_was_called_where_its_name_does_not_find_it(
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

    another = tmp_path / "another" / "transformer-serving"
    another.parent.mkdir()
    shutil.copy(program, another)
    monkeypatch.setenv("PATH", f"{another.parent}:{program.parent}")
    assert command_line("down") == "'a venv/bin/transformer-serving' down"

    another.unlink()
    another.symlink_to(program)
    assert command_line("down") == "transformer-serving down"

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/x/transformer_serving/desk/cli/__main__.py", "status"])
    assert command_line("down") == "transformer-serving down"


def test_pip_is_that_of_the_python_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/a venv/bin/python")
    assert pip_line("torch") == "'/a venv/bin/python' -m pip install torch"


def modules_with(pattern: str, folder: Path) -> set[str]:
    """Those below a folder with a text that matches and is no docstring."""
    found = set()
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        docs = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
        if any(
            isinstance(one, ast.Constant)
            and isinstance(one.value, str)
            and id(one) not in docs
            and re.search(pattern, one.value)
            for one in ast.walk(tree)
        ):
            found.add(path.relative_to(folder).as_posix())
    return found


def test_no_message_of_the_desk_names_the_program_otherwise() -> None:
    """Where its environment is not active, its bare name is no command."""
    assert modules_with("transformer-serving [a-z]", DESK) <= WRITERS


def test_no_message_installs_for_whichever_python_pip_is_of() -> None:
    """Where the environment is not active, that is another one, or the system's, which refuses."""
    ours = Path(transformer_serving.__file__).parent
    assert modules_with("(?<!-m )pip install ", ours) == ELSEWHERE
