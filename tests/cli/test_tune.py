"""What `tune` understands, and how it says what it found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.tune.test_knobs import USUAL
from transformer_serving.desk.bench.bounds import spread
from transformer_serving.desk.cli import main
from transformer_serving.desk.cli.tune import line, table, values
from transformer_serving.desk.deploy.target import TARGET_VARIABLES
from transformer_serving.desk.tune.search import Raced, Rival, Verdict
from transformer_serving.desk.tune.tuning import Tuned


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("name",), "give --requests FILE, or --lengths"),
        (("name", "--lengths", "8", "--requests", "file"), "give --requests FILE, or --lengths"),
        (("name", "--lengths", "8", "--goal", "fast"), "--goal must be"),
        (("na me", "--lengths", "8"), "an endpoint's name takes"),
        (("name", "--lengths", "many"), "--lengths, part 1: must be WORDS"),
        (("name", "--requests", "none.txt"), "none.txt cannot be read: No such file"),
        (("name", "--lengths", "8", "--from", "threads"), "must be knob=value"),
        (("name", "--lengths", "8", "--from", "threads=all"), "threads must be a whole number"),
        (("name", "--lengths", "8", "--from", "buckets=all"), "buckets must be one of converted"),
        (("name", "--lengths", "8", "--compare", "calls=0"), "calls must be a whole number"),
        (("name", "--lengths", "8", "--bundle", "none"), "no bundle"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = CliRunner().invoke(main, ["tune", *arguments, "--state", str(tmp_path / "state")])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_without_a_stack_nothing_is_made_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in TARGET_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    state = tmp_path / "state"
    done = CliRunner().invoke(main, ["tune", "name", "--lengths", "8", "--state", str(state)])
    assert done.exit_code == 2
    assert f"no stack in {state}" in done.output
    assert not state.exists()


def test_the_table_and_the_verdict_have_bounds() -> None:
    kept = Rival(0, 900.0, 9, spread([1.0] * 9), None, chosen=True)
    lost = Rival(1, 700.0, 6, spread([0.75, 0.76, 0.77, 0.78, 0.8, 0.81]), "0", chosen=False)
    cut = Rival(2, 890.0, 3, spread([0.9, 1.0, 1.1]), None, chosen=False)
    other = replace(lost, value=4, lost_to="2")
    gone = Rival(4, 0.0, 0, None, None, chosen=False, why_not="6000 MiB are free")
    races = (
        Raced("threads", (kept, lost, cut, other)),
        Raced("workers", (), "no time was left"),
        Raced("calls", (kept, gone)),
        Raced("instances", (gone,), "no other value came up"),
    )
    tuned = Tuned(USUAL, USUAL, races, (), None, Path("env"), 1.0)  # type: ignore[arg-type]
    console = Console(width=120, record=True, file=None)
    console.print(table(tuned))
    rows = [" ".join(row.split()) for row in console.export_text().splitlines()[1:]]
    assert rows == [
        "threads 0 900 9 kept",
        "1 700 0.78 (0.75 to 0.81) 6 surely worse",
        "2 890 1.00 3 no sure difference",
        "4 700 0.78 (0.75 to 0.81) 6 surely worse than 2",
        "workers 1 no time was left",
        "calls 0 900 9 kept",
        "4 did not come up: 6000 MiB are free",
        "instances 1 no other value came up",
        "4 did not come up: 6000 MiB are free",
    ]
    found = Verdict("the beginning", replace(USUAL, threads=1), 900.0, 700.0, spread([1.3] * 15))
    assert "1.30 times (1.30 to 1.30, each bound 95 % sure) in 15 rounds" in line(found)
    assert "threads=1" in line(found)
    absent = replace(found, ratio=None, why_not="its gateway has ended")
    assert "the beginning, which did not come up: its gateway has ended; " in line(absent)


def test_a_ratio_to_nothing_is_null_in_json() -> None:
    endless = Verdict("the beginning", USUAL, 900.0, 0.0, spread([math.inf] * 15))
    bundle = SimpleNamespace(folder=Path("out"), manifest=SimpleNamespace(bundle_version=5))
    tuned = Tuned(USUAL, USUAL, (Raced("threads"),), (endless,), bundle, Path("env"), 1.0)  # type: ignore[arg-type]
    said = json.loads(json.dumps(values(tuned), allow_nan=False))
    assert said["verdicts"][0]["ratio"]["median"] is None
    assert said["races"] == [{"knob": "threads", "rivals": [], "why_not": ""}]
    assert said["environment"]["CLEARML_SERVING_NUM_PROCESS"] == "1"
