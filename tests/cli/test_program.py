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


# What runs before torch is imported, without any of it: a model's path that is no file.
BEFORE_TORCH = {
    "command line": f"import {SCRIPTS['transformer-serving'].partition(':')[0]}",
    "backend": """
import contextlib, pathlib, sys, types
sys.modules["triton_python_backend_utils"] = types.ModuleType("triton_python_backend_utils")
sys.modules["torch"] = None
from transformer_serving.engine.backends.torch_text.model import TritonPythonModel
with contextlib.suppress(Exception):
    TritonPythonModel.load(pathlib.Path("none"), None)
""",
}


@pytest.mark.parametrize(("asked", "found"), [("", "PASSIVE"), ("ACTIVE", "ACTIVE")])
@pytest.mark.parametrize("code", BEFORE_TORCH.values(), ids=BEFORE_TORCH)
def test_torchs_threads_sleep_while_they_wait_unless_it_is_said(
    code: str, asked: str, found: str
) -> None:
    kept = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport os; print(os.environ['OMP_WAIT_POLICY'])"],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env=kept | ({"OMP_WAIT_POLICY": asked} if asked else {}),
    )  # fmt: skip
    assert done.stdout == f"{found}\n", done.stderr


def test_an_installed_script_finds_it_in_an_older_commit_too() -> None:
    """What `make down` calls after a checkout was installed by another commit."""
    assert SCRIPTS == {"transformer-serving": "transformer_serving.desk.cli:main"}
