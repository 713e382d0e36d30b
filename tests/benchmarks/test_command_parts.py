"""Where a run goes: a whole one takes the stored one's place, a part of it never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.report import documents
from benchmarks.runs import session
from benchmarks.runs.results import RESULTS, Results
from benchmarks.servers.site import BUILD


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What commands would write of a run that is played, documents by the folder of their run."""
    found: list[Path] = []

    def played(*given: Any, kind: str = "bench", keep: Any, **options: Any) -> Results:
        results = Results({"kind": kind, "peers": [], "figures": []})
        keep(results)
        return results

    def draw(results: Results, folder: Path) -> list[Path]:
        found.append(folder)
        return []

    monkeypatch.setattr(session, "bench", played)
    monkeypatch.setattr(session, "demo_models", lambda report: None)
    monkeypatch.setattr(Results, "write", lambda self, path: found.append(path))
    monkeypatch.setattr(documents, "draw", draw)
    monkeypatch.setattr(documents, "write", found.append)
    return found


def files(folder: Path, kind: str) -> list[Path]:
    return [folder / f"{kind}.unfinished.json", folder / f"{kind}.json", folder / "plots"]


PARTS = [
    ("bench", "--only", "null-gateway", "--load", "single"),
    ("bench", "--load", "paced"),
    ("overload", "--engine", "800"),
    ("overload", "--no-real"),
    ("budgets", "--no-clone"),
]


@pytest.mark.parametrize("command", PARTS, ids=" ".join)
def test_a_part_of_a_run_takes_no_stored_ones_place_and_is_in_no_document(
    command: tuple[str, ...], written: list[Path], tmp_path: Path
) -> None:
    main([*command], standalone_mode=False)
    assert written == files(BUILD, command[0])
    written.clear()
    main([*command, "--out", str(RESULTS)], standalone_mode=False)
    assert written == files(BUILD, command[0])
    written.clear()
    main([*command, "--out", str(tmp_path)], standalone_mode=False)
    assert written == files(tmp_path, command[0])


@pytest.mark.parametrize("command", ["bench", "overload", "budgets"])
def test_a_whole_run_is_what_the_documents_are_of(command: str, written: list[Path]) -> None:
    main([command], standalone_mode=False)
    assert written == [*files(RESULTS, command), RESULTS]
