"""A name says one thing in the whole tree: of classes, and of files beside their folder."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("preprocess", "transformer_serving", "benchmarks", "scripts", "tests", "compose", "docs")
# Words that any part has one of: alone, they do not say whose it is.
OF_ANY_PART = ("Failure", "Settings", "Report", "Figures", "Target", "Record", "Golden")
# Docker's own name, and the one that the root's link has too: users know both.
KNOWN_BY_THEIR_NAME = {"compose/compose.yaml", "transformer_serving/desk/versions/versions.toml"}


def files(pattern: str) -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob(pattern)]
    assert found
    return [path for path in found if path.is_file() and "__pycache__" not in path.parts]


def defined(path: Path) -> set[str]:
    """Classes anywhere in a file, and what its top level gives a value."""
    tree = ast.parse(path.read_text("utf-8"))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_a_word_of_any_part_is_one_class_at_most() -> None:
    seen = Counter(name for path in files("*.py") for name in defined(path) & set(OF_ANY_PART))
    assert [name for name, count in seen.items() if count > 1] == []


@pytest.mark.parametrize("path", ["gateway/gateway_limits.py", "bench/test_bench.py", "a/a.py"])
def test_a_folder_said_twice_is_seen(path: str) -> None:
    assert says_its_folder(Path(path))


def test_no_file_says_its_folder_again() -> None:
    found = {path.relative_to(ROOT) for path in files("*")}
    assert {path.as_posix() for path in found if says_its_folder(path)} == KNOWN_BY_THEIR_NAME


def says_its_folder(path: Path) -> bool:
    stem = path.stem.removeprefix("test_")
    return stem == path.parent.name or stem.startswith(f"{path.parent.name}_")
