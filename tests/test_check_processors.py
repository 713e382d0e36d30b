"""The instruction sets and the table of `make check-processors`, which itself takes minutes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import check_processors
from scripts.check_processors import ENGINES, STAMP, Row, stamp, table, take
from scripts.processor_levels import imitable, processor_flags


def test_a_processor_imitates_what_its_flags_name() -> None:
    flags = processor_flags(
        "processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512bw avx512dq avx512vl\n"
    )
    assert [level.name for level in imitable(flags)] == ["AVX2", "AVX512_CORE"]
    assert imitable(frozenset()) == ()
    assert processor_flags("") == frozenset()


def test_a_fault_is_a_cell_of_its_own() -> None:
    rows = [
        Row("openvino-int8", "AVX2", 0.01, {"AVX2": 0.01, "all": None}, ("at 32 tokens",)),
        Row("openvino-int8", "all", 0.02, {"AVX2": 0.03, "all": 0.02}, ()),
    ]
    _, _, low, high = table(rows, ["AVX2", "all"])
    assert low == "| openvino int8 | AVX2 | 1.0e-02 | 1.0e-02 |  | 3.0e-02 |"
    assert high == "| openvino int8 | all | 2.0e-02 | 2.0e-02 | refused |  |"


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree without changes."""
    monkeypatch.setattr(check_processors, "commit", lambda: "abc")


@pytest.mark.usefixtures("named")
def test_a_run_is_taken_up_by_the_same_one(tmp_path: Path) -> None:
    take(tmp_path, stamp(["AVX2"], ENGINES, 64))
    (tmp_path / "build AVX2.json").write_text("[]")
    take(tmp_path, stamp(["AVX2"], ENGINES, 64))


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize("other", ["levels", "engines", "max-length", "commit", "versions"])
def test_the_steps_of_another_run_are_not_taken(
    other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(tmp_path, stamp(["AVX2"], ENGINES, 64))
    kept = (tmp_path / STAMP).read_text()
    for name in ("commit", "versions"):
        if name == other:
            monkeypatch.setattr(check_processors, name, lambda: "def")
    levels = ["AVX512_CORE" if other == "levels" else "AVX2"]
    engines = ENGINES[:1] if other == "engines" else ENGINES
    with pytest.raises(SystemExit, match=f"a run with other {other}; name another folder"):
        take(tmp_path, stamp(levels, engines, 16 if other == "max-length" else 64))
    assert (tmp_path / STAMP).read_text() == kept


def test_steps_without_a_name_for_their_code_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_processors, "commit", lambda: "abc+")
    take(tmp_path, stamp(["AVX2"], ENGINES, 64))
    with pytest.raises(SystemExit, match="other changes of the code"):
        take(tmp_path, stamp(["AVX2"], ENGINES, 64))
    (tmp_path / STAMP).unlink()
    (tmp_path / "graph.onnx").write_text("")
    with pytest.raises(SystemExit, match="other levels, "):
        take(tmp_path, stamp(["AVX2"], ENGINES, 64))


@pytest.mark.parametrize(
    "part",
    [("--levels", "AVX2"), ("--engines", ENGINES[0]), ("--max-length", "16")],
    ids=lambda part: part[0],
)
def test_a_part_is_not_written_to_the_page(
    part: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["check_processors", "--write", *part])
    with pytest.raises(SystemExit) as ended:
        check_processors.main()
    assert ended.value.code == 2
    assert "--write is of a whole run" in capsys.readouterr().err
