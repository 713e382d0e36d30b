"""The program as it is installed: from its first import on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

from transformer_serving.desk.demo.kept import ROOT

SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]


def run(click: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As the installed script does it, where `click` is that module's text; '' is the real one."""
    module, _, function = SCRIPTS["transformer-serving"].partition(":")
    if click:
        (folder / "click.py").write_text(click)
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"},
    )  # fmt: skip


@pytest.mark.parametrize(
    "click",
    ["raise KeyboardInterrupt", "raise ImportError('_core') from KeyboardInterrupt()"],
    ids=["of Python", "of a native module"],
)
def test_ctrl_c_while_it_loads_is_a_word(click: str, tmp_path: Path) -> None:
    done = run(click, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "Aborted!\n")


def test_a_module_that_is_missing_is_named(tmp_path: Path) -> None:
    done = run("raise ImportError('no such thing')", tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("ImportError: no such thing\n")


def test_it_is_the_command_line(tmp_path: Path) -> None:
    done = run("", tmp_path, "up", "--help")
    assert done.returncode == 0, done.stderr
    assert "--port-base" in done.stdout


def test_an_installed_script_finds_it_in_an_older_commit_too() -> None:
    """What `make down` calls after a checkout was installed by another commit."""
    assert SCRIPTS == {"transformer-serving": "transformer_serving.desk.cli:main"}
