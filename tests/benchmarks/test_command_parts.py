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
        about = dict.fromkeys(("date", "commit", "machine", "versions", "triton", "plan"))
        results = Results({**about, "kind": kind, "peers": [], "figures": []})
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


KINDS = {"all": "bench-all"}
PARTS = [
    ("bench", "--only", "null-gateway", "--load", "single"),
    ("bench", "--load", "paced"),
    ("overload", "--engine", "800"),
    ("overload", "--no-real"),
    ("budgets", "--no-clone"),
    ("bench", "--rounds", "3", "--seconds", "1"),
    ("bench", "--rounds", "4"),
    ("bench", "--seconds", "1.5"),
    ("all", "--rounds", "4"),
    ("budgets", "--seconds", "1"),
    ("generation", "--rounds", "4"),
    ("growth", "--rounds", "4"),
]


@pytest.mark.parametrize("command", PARTS, ids=" ".join)
def test_a_part_of_a_run_takes_no_stored_ones_place_and_is_in_no_document(
    command: tuple[str, ...], written: list[Path], tmp_path: Path
) -> None:
    kind = KINDS.get(command[0], command[0])
    main([*command], standalone_mode=False)
    assert written == files(BUILD, kind)
    written.clear()
    main([*command, "--out", str(RESULTS)], standalone_mode=False)
    assert written == files(BUILD, kind)
    written.clear()
    main([*command, "--out", str(tmp_path)], standalone_mode=False)
    assert written == files(tmp_path, kind)


@pytest.mark.parametrize(
    "command",
    [
        ("bench",), ("overload",), ("budgets",), ("all",), ("growth",),
        ("bench", "--rounds", "5", "--seconds", "2"), ("generation", "--rounds", "5"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_whole_run_is_what_the_documents_are_of(
    command: tuple[str, ...], written: list[Path]
) -> None:
    main([*command], standalone_mode=False)
    assert written == [*files(RESULTS, KINDS.get(command[0], command[0])), RESULTS]
