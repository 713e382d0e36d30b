"""Imports go one way: desk -> control_plane, engine, gateway, preprocess -> contract."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = "transformer_serving"
# Each package and those of ours that it may import; all but the last run where the desk is not.
ALLOWED = {
    "contract": {"contract"},
    "preprocess": {"preprocess", "contract"},
    "gateway": {"gateway", "contract"},
    "engine": {"engine", "contract"},
    "control_plane": {"control_plane", "contract"},
    "desk": {"desk", "control_plane", "engine", "gateway", "preprocess", "contract"},
}
HEAVY = {"torch", "transformers", "sentence_transformers", "openvino", "onnxruntime", "numpy"}


def folder_of(package: str) -> Path:
    return ROOT / package if package == "preprocess" else ROOT / OURS / package


@functools.cache
def modules_of(path: Path) -> frozenset[str]:
    """The modules that a file names in its imports; for `from a import b` a.b, be it one or not."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def packages_of(path: Path) -> set[str]:
    """Of our packages those that a file imports from; for all else its top name."""
    found = set()
    for name in modules_of(path):
        first, _, rest = name.partition(".")
        found.add(rest.split(".")[0] if first == OURS and rest else first)
    return found


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    files = list(folder_of(package).rglob("*.py"))
    assert files
    for path in files:
        ours = packages_of(path) & set(ALLOWED)
        assert ours <= ALLOWED[package], f"{path} imports {ours - ALLOWED[package]}"


def test_every_package_of_ours_has_its_row() -> None:
    folders = {path.parent.name for path in (ROOT / OURS).glob("*/__init__.py")}
    assert folders | {"preprocess"} == set(ALLOWED)
    assert [path.name for path in (ROOT / OURS).glob("*.py")] == ["__init__.py"]


def test_what_stands_around_all_of_it_imports_nothing() -> None:
    """It is packed into every bundle and laid beside Triton's backends."""
    assert not modules_of(ROOT / OURS / "__init__.py")


def test_the_contract_needs_nothing_but_python() -> None:
    for path in folder_of("contract").rglob("*.py"):
        others = packages_of(path) - set(sys.stdlib_module_names) - {"contract"}
        assert not others, f"{path} imports {others}"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("preprocess", {"torch", "transformers", "tritonclient", "clearml"}),
        ("transformer_serving.desk.cli", HEAVY | {"clearml", "fastapi"}),
        ("transformer_serving.desk.local.stack", HEAVY | {"clearml", "asyncio", "sqlite3"}),
        # Each part of the stack begins with it.
        (
            "transformer_serving.desk.local.run_part",
            HEAVY | {"asyncio", "http.client", "importlib.metadata", "psutil", "sqlite3"},
        ),
        ("transformer_serving.gateway.server.command", HEAVY | {"clearml", "starlette"}),
        ("transformer_serving.desk.deploy.rollback", HEAVY | {"clearml"}),
    ],
)
def test_heavy_packages_stay_out(module: str, forbidden: set[str]) -> None:
    code = f"import {module}, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert not forbidden & set(loaded)


@pytest.mark.parametrize("package", ["desk"])
def test_no_python_of_the_desk_imports_from_the_folder_it_is_started_in(package: str) -> None:
    """Each command that starts with this interpreter goes on with -P."""
    seen = 0
    for path in folder_of(package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.List) and node.elts and is_interpreter(node.elts[0]):
                flag = node.elts[1]
                assert isinstance(flag, ast.Constant), f"{path}:{node.lineno}"
                assert flag.value == "-P", f"{path}:{node.lineno}"
                seen += 1
    assert seen > 5


def is_interpreter(node: ast.expr) -> bool:
    return ast.unparse(node) == "sys.executable"


def imports_of_ours() -> dict[str, set[str]]:
    """Each module and those of ours that it imports, wherever in the file."""
    paths = [*(ROOT / OURS).rglob("*.py"), *(ROOT / "preprocess").rglob("*.py")]
    modules = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."): path for path in paths
    }
    known = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    return {
        name: {
            named if named in known else named.rpartition(".")[0]
            for named in modules_of(path)
            if named.split(".")[0] in (OURS, "preprocess")
        }
        & known.keys() - {name}
        for name, path in known.items()
    }


def test_no_module_is_imported_by_what_it_imports() -> None:
    TopologicalSorter(imports_of_ours()).prepare()


def test_no_room_of_the_desk_is_imported_by_what_it_imports() -> None:
    rooms: dict[str, set[str]] = {}
    desk = f"{OURS}.desk."
    for name, wanted in imports_of_ours().items():
        room = name.removeprefix(desk).split(".")[0]
        others = {one.removeprefix(desk).split(".")[0] for one in wanted if one.startswith(desk)}
        if name.startswith(desk):
            rooms.setdefault(room, set()).update(others - {room})
    assert "parity" in rooms["conversion"]
    TopologicalSorter(rooms).prepare()
