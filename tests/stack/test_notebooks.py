"""The notebooks, run from their first to their last cell against the real stack."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from notebooks.execute import executed, notebooks
from tests.stack.conftest import ROOT, Stack, started

pytestmark = [pytest.mark.long, pytest.mark.by_hand]

# As they are in the repository: a picture or two, and answers of a few lines.
MOST_BYTES = 200_000


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Stack]]:
    """A repository's folder as far as a notebook looks at it, and its stack after `make up`."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "notebooks").mkdir()
    for path in (ROOT / "pyproject.toml", *notebooks()):
        shutil.copy(path, folder / path.relative_to(ROOT))
    with started(folder / ".stack", "--demo") as stack:
        yield folder, stack


def opened(stack: Stack) -> dict[str, str]:
    """The environment of an editor: nothing of the stack but its port, no activated environment."""
    programs = os.environ["PATH"].split(os.pathsep)
    own = str(Path(sys.executable).parent)
    bare = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("CLEARML_", "TRANSFORMER_SERVING_"))
    }
    return {
        **bare,
        "PATH": os.pathsep.join(name for name in programs if name != own),
        "CLEARML_DEFAULT_BASE_SERVE_URL": stack.url("").rstrip("/"),
        "NOTEBOOK_SECONDS": "0.3",
    }


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_runs_from_start_to_end(checkout: tuple[Path, Stack], path: Path) -> None:
    folder, stack = checkout
    found = executed(folder / path.relative_to(ROOT), opened(stack))
    kept = nbformat.read(path, as_version=4)
    assert [bool(cell.get("outputs")) for cell in found.cells] == [
        bool(cell.get("outputs")) for cell in kept.cells
    ], "the outputs in the repository are of other cells; run make notebooks"


def outputs(path: Path) -> list[Any]:
    cells = nbformat.read(path, as_version=4).cells
    return [output for cell in cells for output in cell.get("outputs", [])]


@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_a_notebook_reads_as_a_document(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].cell_type == "markdown"
    assert cells[0].source.startswith("# ")
    assert all(cell.execution_count for cell in cells if cell.cell_type == "code")
    kinds = {output.output_type for output in outputs(path)}
    assert kinds
    assert "error" not in kinds
    text = path.read_text("utf-8")
    assert len(text) < MOST_BYTES
    for private in (str(ROOT), str(Path.home()) + "/", "/tmp/"):
        assert private not in text
