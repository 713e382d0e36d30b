"""What stands in a path, a name or another's error is printed as it stands."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from rich.console import Console

from transformer_serving.desk.cli import convert, main, tune
from transformer_serving.desk.cli.progress import Phases, plain_console, step_line
from transformer_serving.desk.parity.comparison import Compared
from transformer_serving.desk.tune.tuning import Tuned

# Rich's closing tag of nothing that is open, and an opening one.
FOREIGN = "failed [/models/x/1/model.xml] [prod]"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_step_of_another_is_shown_as_it_stands(terminal: bool) -> None:
    out = io.StringIO()
    phases = Phases(Console(file=out, force_terminal=terminal, width=200))
    with phases.phase("search [x]"):
        phases.report(FOREIGN)
    assert "search [x]" in out.getvalue()
    assert terminal or FOREIGN in out.getvalue()


@pytest.mark.parametrize("of", ["pipe", "dumb", "terminal"])
def test_where_nothing_moves_each_step_is_a_line(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With minutes between them: whoever waits sees that it goes on."""
    monkeypatch.setenv("TERM", "dumb" if of == "dumb" else "xterm")
    out = io.StringIO()
    console = Console(file=out, force_terminal=of != "pipe", width=60, markup=False)
    with console.status("deploying") as status:
        step_line(status)(FOREIGN)
        assert (f"{FOREIGN} ...\n" in out.getvalue()) == (of != "terminal")
    out.truncate(0)
    phases = Phases(console)
    with phases.phase("start"):
        phases.report("one step")
    lines = out.getvalue().replace("\0", "").splitlines()
    assert ("start ..." in lines, "  one step" in lines) == (of != "terminal",) * 2


def test_a_spinner_of_a_command_takes_any_step() -> None:
    console = plain_console()
    with console.status("deploying") as status:
        step_line(status)(FOREIGN)
        assert FOREIGN in str(status.status)


def test_down_names_its_folder_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "[prod]/.stack"
    done = CliRunner().invoke(main, ["down", "--state", str(folder)])
    assert done.output.splitlines()[-1].endswith(f"no stack in {folder}")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(show: Any) -> str:
        console = plain_console()
        with console.capture() as shown:
            show(console)
        return shown.get()

    return of


def test_convert_prints_a_line_for_a_shell(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "_found", lambda done: "parity is well")
    manifest = SimpleNamespace(bundle_version=1, task="t", engine="e", precision="fp32")
    endpoint = SimpleNamespace(tokens=SimpleNamespace(known_ids=None))
    done = SimpleNamespace(
        compared=Compared(),
        refused=(),
        gain=None,
        remarks=(),
        bundle=SimpleNamespace(manifest=manifest, endpoint=endpoint),
    )
    shown = said(lambda console: convert._say(console, cast("Any", done), Path("[v2]/my b")))
    assert "for t in [v2]/my b (e, fp32)" in shown
    assert "transformer-serving deploy '[v2]/my b' --endpoint NAME" in shown


def test_tune_prints_one_too(said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "table", lambda tuned: "")
    setting = cast("Any", None)
    tuned = Tuned(setting, setting, bundle=cast("Any", "b"), environment=Path("x"))
    shown = said(
        lambda console: tune._show(tuned, "texts", Path("[v2]/my b"), Path(".stack"), console)
    )
    assert "[v2]/my b is the tuned bundle" in shown
    assert "transformer-serving deploy '[v2]/my b' --endpoint texts" in shown
