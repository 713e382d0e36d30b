"""The rooms of benchmarks/ import one way: studies -> report -> runs -> servers."""

from __future__ import annotations

import ast
from pathlib import Path

import benchmarks

FOLDER = Path(benchmarks.__file__).parent
ROOMS = ["servers", "runs", "report", "studies"]


def rooms_of(file: Path) -> set[str]:
    """The rooms that a file imports from, in its functions too."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "benchmarks":
            found |= {alias.name for alias in node.names}
    return found


def test_a_room_imports_only_those_before_it() -> None:
    for at, room in enumerate(ROOMS):
        files = list((FOLDER / room).rglob("*.py"))
        assert len(files) > 4
        for file in files:
            wanted = rooms_of(file)
            assert wanted <= set(ROOMS[: at + 1]), f"{file} imports {wanted}"
