"""Imports go one way: transformer_serving -> engine, gateway, preprocess -> contract."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "contract": {"contract"},
    "preprocess": {"preprocess", "contract"},
    "gateway": {"gateway", "contract"},
    "engine": {"engine", "contract"},
    "transformer_serving": {
        "transformer_serving", "engine", "gateway", "preprocess", "contract"
    },
}  # fmt: skip
HEAVY = {"torch", "transformers", "sentence_transformers", "openvino", "onnxruntime", "numpy"}


def imported_names(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        ours = imported_names(path) & set(ALLOWED)
        assert ours <= ALLOWED[package], f"{path} imports {ours - ALLOWED[package]}"


def test_the_contract_needs_nothing_but_python() -> None:
    for path in (ROOT / "contract").rglob("*.py"):
        others = imported_names(path) - set(sys.stdlib_module_names) - {"contract"}
        assert not others, f"{path} imports {others}"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("preprocess", {"torch", "transformers", "tritonclient", "clearml"}),
        ("transformer_serving.cli", HEAVY | {"clearml", "fastapi"}),
        ("transformer_serving.local.commands", HEAVY | {"clearml"}),
    ],
)
def test_heavy_packages_stay_out(module: str, forbidden: set[str]) -> None:
    code = f"import {module}, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not forbidden & set(loaded)


@pytest.mark.parametrize("package", ["transformer_serving"])
def test_no_python_of_the_desk_imports_from_the_folder_it_is_started_in(package: str) -> None:
    """Each command that starts with this interpreter goes on with -P."""
    seen = 0
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.List) and node.elts and is_interpreter(node.elts[0]):
                flag = node.elts[1]
                assert isinstance(flag, ast.Constant), f"{path}:{node.lineno}"
                assert flag.value == "-P", f"{path}:{node.lineno}"
                seen += 1
    assert seen > 5


def is_interpreter(node: ast.expr) -> bool:
    return ast.unparse(node) == "sys.executable"
