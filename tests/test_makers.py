"""Programs that make targets run: --help begins no work, and what one lacks is said plainly."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import request_cost, trace_cost, triton_doors
from benchmarks.studies import idle
from scripts import compare_hints
from tests import architectures, continuations

ROOT = Path(__file__).parents[1]
# click answers for the first.
OTHERS = {"benchmarks", "compileall", "pip", "pytest"}
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
MAKERS = sorted(set(re.findall(r"/python -m ([\w.]+)", MAKEFILE)) - OTHERS)
FILES = sorted(set(re.findall(r"(?:/python|\$\(PYTHON\)) (\w+/\w+\.py)", MAKEFILE)))
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")


@pytest.mark.parametrize("maker", [*MAKERS, *FILES])
def test_help_begins_no_work(
    maker: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [maker, "--help"])
    # Some set it for their process, which this one is.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(ROOT)
    begin = runpy.run_path if maker in FILES else runpy.run_module
    with pytest.raises(SystemExit) as ended:
        begin(maker, run_name="__main__")
    assert not ended.value.code
    assert "usage: " in capsys.readouterr().out.lower()


@pytest.mark.parametrize(
    "maker", [request_cost, triton_doors, trace_cost], ids=lambda one: one.__name__
)
def test_without_the_demo_it_says_how_it_is_made(
    maker: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_cost, "BUNDLE", ROOT / "build" / "none")
    monkeypatch.setattr(sys, "argv", ["maker"])
    with pytest.raises(
        SystemExit, match="error: there is no bundle build/none; 'make up' builds it"
    ):
        maker.main()


def test_of_no_stack_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["idle", "--state", str(tmp_path / "none")])
    with pytest.raises(SystemExit, match=r"error: no stack runs in .*none; name the folder"):
        idle.main()
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("table", [architectures, continuations], ids=lambda one: one.__name__)
def test_a_family_that_is_not_there_is_no_empty_table(
    table: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["table", "nobody"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(table.__name__, run_name="__main__")
    assert ended.value.code == 2
    assert "no family 'nobody'; there are " in capsys.readouterr().err


def test_what_a_process_of_compare_hints_said_is_said(tmp_path: Path) -> None:
    """Of a folder without graphs; a real process."""
    with pytest.raises(SystemExit, match=r"error: under AVX2 it failed:\n(.|\n)*not enough values"):
        compare_hints.under("AVX2", tmp_path)
