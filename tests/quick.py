"""What `make test-quick` runs: a rule leaves out what costs, and a guard holds the run to that.

Left out is a file that imports torch or transformers, itself or through what it imports; a file
that starts a Triton of its own; a test with a fixture that is made once, in a folder, for several
tests, as servers and exported models are; and what is marked slow. What gets past the rule and
imports one of these libraries or starts a tritonserver all the same fails.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parent.parent
LIBRARIES = {"torch", "transformers", "sentence_transformers", "onnxscript", "nncf"}
# Others' modules that import one of them.
BRING_THEM = {"clearml_serving.serving.model_request_processor"}
STARTS_TRITON = "tests.engine.triton_server.running_triton"
SERVER = "tritonserver"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A file that would import the libraries is not imported."""
    if collection_path.match("test_*.py") and costly_import(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [item for item in items if item.get_closest_marker("slow") or shared_folders(item)]
    config.hook.pytest_deselected(items=left_out)
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]


def shared_folders(item: pytest.Item) -> list[str]:
    """The test's fixtures that are made once, in a folder, for several tests."""
    known = getattr(item, "_fixtureinfo", None)
    return [
        name
        for name, (*_, fixture) in (known.name2fixturedefs if known else {}).items()
        if fixture.scope != "function" and "tmp_path_factory" in fixture.argnames
    ]


def costly_import(file: Path) -> str | None:
    """The import that makes a file no quick one."""
    if STARTS_TRITON in imports(file):
        return STARTS_TRITON
    seen: set[Path] = set()
    rest = [file]
    while rest:
        seen.add(one := rest.pop())
        for name in sorted(imports(one)):
            if name.partition(".")[0] in LIBRARIES or BRING_THEM & modules_of(name):
                return name
            rest += [own for own in files_of(name) if own not in seen]
    return None


def modules_of(name: str) -> set[str]:
    """A name and all that it lies in."""
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts) + 1)}


@functools.cache
def imports(file: Path) -> frozenset[str]:
    """What importing a file imports: not what its functions do, nor what only types need."""
    found: set[str] = set()
    rest = list(ast.parse(file.read_bytes()).body)
    while rest:
        match rest.pop():
            case ast.Import(names):
                found.update(alias.name for alias in names)
            case ast.ImportFrom(module, names):
                found.update(f"{module}.{alias.name}" for alias in names)
            case ast.If(test, body, other) if "TYPE_CHECKING" not in ast.unparse(test):
                rest += [*body, *other]
            case ast.Try(body) | ast.With(_, body):
                rest += body
    return frozenset(found)


@functools.cache
def files_of(name: str) -> tuple[Path, ...]:
    """The files of this checkout that importing a module, or a name of one, runs."""
    parts = name.split(".")
    paths = [ROOT.joinpath(*parts[:end]) for end in range(1, len(parts) + 1)]
    files = [file for path in paths for file in (path / "__init__.py", Path(f"{path}.py"))]
    return tuple(file for file in files if file.is_file())


class NotQuick(BaseException):
    """No Exception: code that takes a library's absence for an answer must not hide it."""


_refused: list[str] = []
_started: list[str] = []


def pytest_configure() -> None:
    sys.addaudithook(_guard)


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "import":
        if str(arguments[0]).partition(".")[0] in LIBRARIES:
            _refuse(f"imports {arguments[0]}")
    elif event == "subprocess.Popen":
        program = os.path.basename(os.fsdecode(arguments[0]))
        _started.append(program)
        if program == SERVER:
            _refuse(f"starts {program}")


def _refuse(what: str) -> None:
    _refused.append(what)
    raise NotQuick(f"a quick test {what}: mark it slow")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A file that imports one is named itself, also where it hides the refusal, and no test is."""
    report = yield
    if _refused and report.passed:
        report.outcome = "failed"
        report.longrepr = f"a quick file {', '.join(_refused)}"
    _refused.clear()
    return report


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    """Fails also where a test caught the refusal, or where a process of its own started Triton."""
    yield
    below = psutil.Process().children(recursive=True) if _started else []
    found = [*_refused, *(f"leaves {SERVER}" for process in below if process.name() == SERVER)]
    _refused.clear()
    _started.clear()
    assert not found, f"a quick test {', '.join(found)}: mark it slow"
