"""What `tune` understands, and how it says what it found."""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.stack.small_bundles import Parts, write_small
from tests.tune.test_knobs import USUAL
from transformer_serving.contract.gate.server_facts import Gpu
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.desk.bench.bounds import spread
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.bundle.signing import new_key
from transformer_serving.desk.cli import main
from transformer_serving.desk.cli.tune import line, open_line, share, table, values
from transformer_serving.desk.deploy.target import TARGET_VARIABLES
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.tune import requests, tuning
from transformer_serving.desk.tune.goal import Meter, OpenLoop
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
        (("name", "--lengths", "8", "--bundle", "none"), "none does not exist; name the folder"),
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


BEGUN = ("name", "--lengths", "8")


@pytest.fixture
def searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A search that has found something in no time; its proof is the bundle as it was."""
    small = write_small(tmp_path / "small", Parts(parity=True))
    own = SimpleNamespace(
        bring=lambda _: None,
        searched=lambda: None,
        differs=True,
        address=lambda _: None,
        prove=lambda _, target: open_bundle(Path(shutil.copytree(small.folder, target))),
    )

    @contextmanager
    def own_stack(*_: Any) -> Iterator[Any]:
        yield own

    class Search:
        def __init__(self, _: Any, scope: Any, *__: Any) -> None:
            self.races: list[Raced] = []
            own.scope = scope

        def run(self, knobs: Any, start: Any) -> Any:
            kept = Rival(0, 900.0, 9, spread([1.0] * 9), None, chosen=True)
            self.found = start
            self.races.append(Raced("threads", (kept,)))
            own.searched()
            return start

        def judge(self, best: Any, others: Any) -> Any:
            verdict = Verdict("the beginning", best, 900.0, 700.0, spread([1.3] * 15))
            return (verdict,) if own.differs else ()

        def alone(self, best: Any) -> float:
            return 600.0

    monkeypatch.setattr(tuning, "own_stack", own_stack)
    monkeypatch.setattr(tuning, "Search", Search)
    monkeypatch.setattr(requests, "answered", lambda _, given: requests.Answered(given))
    monkeypatch.chdir(tmp_path)
    given = ("--bundle", str(small.folder), "--state", str(tmp_path / "state"))
    return SimpleNamespace(
        own=own, tune=lambda *more: CliRunner().invoke(main, ["tune", *BEGUN, *given, *more])
    )


@pytest.mark.parametrize("end", ["written", "proven"])
def test_what_was_found_is_said_also_where_the_end_fails(
    searched: SimpleNamespace, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        if end == "proven":
            raise Failure("its engine's answers differ")
        raise OSError(errno.ENOSPC, "No space left on device", "name-tuned")

    place, name = (tuning, "written") if end == "written" else (searched.own, "prove")
    monkeypatch.setattr(place, name, fails)
    done = searched.tune()
    assert done.exit_code == 1
    said = done.stdout
    assert "kept" in said
    assert "1.30 times (1.30 to 1.30" in said
    assert "the result is precision=fp32,threads=0,buckets=converted," in said
    assert "is not written whole" in said
    assert "error: " in done.stderr
    rows = json.loads(searched.tune("--json").stdout)
    assert (rows["bundle"], rows["bundle_version"], rows["environment_file"]) == (None, None, None)
    assert rows["setting"]["precision"] == "fp32"
    assert rows["verdicts"][0]["ratio"]["median"] == 1.3


@pytest.mark.parametrize(
    "fault", [Failure("nothing answers at 127.0.0.1:1"), KeyboardInterrupt()], ids=["fails", "ends"]
)
def test_what_was_found_is_said_also_where_the_search_fails_or_is_ended(
    searched: SimpleNamespace, fault: BaseException
) -> None:
    def fails() -> None:
        raise fault

    searched.own.searched = fails
    done = searched.tune()
    assert done.exit_code == 1
    assert "threads" in done.stdout
    assert "again from there: --from precision=fp32,threads=0," in done.stdout
    rows = json.loads(searched.tune("--json").stdout)
    assert [one["knob"] for one in rows["races"]] == ["threads"]
    assert (rows["bundle"], rows["verdicts"]) == (None, [])


def test_what_is_written_is_signed(
    searched: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, key = new_key("me", tmp_path)
    assert searched.tune("--output", "my", "--sign", str(secret)).exit_code == 0
    monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, key.public)
    assert open_bundle(tmp_path / "my").manifest.engine == "onnxruntime"
    # A key that cannot be used is told before there is anything to sign.
    secret.chmod(0o644)
    done = searched.tune("--output", "other", "--sign", str(secret))
    assert (done.exit_code, (tmp_path / "other").exists()) == (2, False)
    assert "others can read" in done.output


def test_the_variables_replace_only_those_of_an_earlier_run(
    searched: SimpleNamespace, tmp_path: Path
) -> None:
    env = tmp_path / "my.env"
    assert searched.tune("--output", "my").exit_code == 0
    before = env.read_text()
    assert searched.tune("--output", "my").exit_code == 0
    assert env.read_text() == before
    theirs = before + "CLEARML_API_SECRET_KEY=precious\n"
    env.write_text(theirs)
    done = searched.tune("--output", "my")
    assert done.exit_code == 2
    assert "my.env would be replaced, and it has other lines than" in done.output
    assert "precious" not in done.output
    assert env.read_text() == theirs


@pytest.mark.parametrize(
    ("output", "said"),
    [("taken", "what is there cannot be read: Is a directory"), ("x" * 240, "at most 233 bytes")],
    ids=["a folder", "a long name"],
)
def test_where_the_variables_cannot_be_written_nothing_is_searched(
    output: str, said: str, searched: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "taken.env").mkdir()
    done = searched.tune("--output", output)
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
    assert not (tmp_path / "state").exists()


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
        Raced("calls", (replace(kept, value=4), replace(lost, value=2, lost_to="4"))),
        Raced("workers", (replace(cut, value=1), replace(kept, value=2)), wide=True),
    )
    tuned = Tuned(USUAL, USUAL, races, (), None, Path("env"), 1.0)
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
        "4 left out: 6000 MiB are free",
        "instances 1 no other value came up",
        "4 left out: 6000 MiB are free",
        "calls 4 900 9 kept, the largest tried",
        "2 700 0.78 (0.75 to 0.81) 6 surely worse",
        "workers 1 890 1.00 3 no sure difference",
        "2 900 9 kept for the races that follow",
    ]
    found = Verdict("the beginning", replace(USUAL, threads=1), 900.0, 700.0, spread([1.3] * 15))
    assert "1.30 times (1.30 to 1.30, each bound 95 % sure) in 15 rounds" in line(found)
    assert "threads=1" in line(found)
    absent = replace(found, ratio=None, why_not="its gateway has ended")
    assert "the beginning, which failed: its gateway has ended; " in line(absent)


def test_a_ratio_to_nothing_is_null_in_json() -> None:
    endless = Verdict("the beginning", USUAL, 900.0, 0.0, spread([math.inf] * 15))
    bundle = SimpleNamespace(folder=Path("out"), manifest=SimpleNamespace(bundle_version=5))
    tuned = Tuned(USUAL, USUAL, (Raced("threads"),), (endless,), bundle, Path("env"), 1.0)  # type: ignore[arg-type]
    said = json.loads(json.dumps(values(tuned), allow_nan=False))
    assert said["verdicts"][0]["ratio"]["median"] is None
    assert said["races"] == [{"knob": "threads", "rivals": [], "why_not": "", "wide": False}]
    assert said["environment"]["CLEARML_SERVING_NUM_PROCESS"] == "1"


def test_it_says_how_many_of_the_requests_were_measured() -> None:
    tuned = Tuned(USUAL, USUAL, (), (), None, None, 1.0, measured=80, requests=2000)
    assert share(tuned).startswith("80 of 2000 requests were measured; with longer --seconds")
    assert share(replace(tuned, measured=2000)) == "2000 of 2000 requests were measured"
    said = values(tuned)
    assert (said["requests"], said["requests_measured"]) == (2000, 80)


def test_a_p99_of_clients_who_wait_is_told_beside_one_of_callers_who_do_not() -> None:
    tuned = Tuned(USUAL, USUAL, open=OpenLoop(630.0, 41.6))
    [said] = open_line(tuned)
    assert said.endswith("of callers at random moments, 630 texts/s: p99 42 ms")
    [said] = open_line(replace(tuned, open=OpenLoop(630.0, math.inf)))
    assert said.endswith("not all answered with 200")
    assert values(tuned)["open_loop"] == {"texts": 630.0, "p99_ms": 41.6}
    assert values(replace(tuned, open=OpenLoop(630.0, math.inf)))["open_loop"]["p99_ms"] is None
    assert open_line(replace(tuned, open=None)) == []


def test_the_result_is_asked_by_an_open_loop_where_a_p99_is_the_goal(
    searched: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Meter, "open_loop", lambda _, __, texts: OpenLoop(texts, 5.0))
    assert "630 texts/s: p99 5 ms" in searched.tune("--goal", "p99<=50ms").stdout
    assert "random moments" not in searched.tune("--output", "other").stdout
    searched.own.differs = False
    done = searched.tune("--goal", "p99<=50ms", "--output", "third")
    assert "420 texts/s: p99 5 ms" in done.stdout


def test_where_callers_who_do_not_wait_cannot_be_measured_the_result_is_written(
    searched: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise Failure("nothing answers at 127.0.0.1:1")

    monkeypatch.setattr(Meter, "open_loop", fails)
    done = searched.tune("--goal", "p99<=50ms", "--output", "my")
    assert done.exit_code == 0
    assert "do not wait for their answers: nothing answers at 127.0.0.1:1" in done.stdout
    assert Path("my.env").is_file()


@pytest.mark.parametrize(("shown", "gpu"), [(None, True), ("0", True), ("", False), ("-1", False)])
def test_a_gpu_that_its_stack_is_not_shown_is_none(
    searched: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, shown: str | None, gpu: bool
) -> None:
    monkeypatch.setattr(tuning, "read_gpus", lambda _: (Gpu("A10", "550.54", "8.6"),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if shown is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
    searched.tune()
    assert searched.own.scope.gpu == gpu


def test_it_says_where_its_generator_was_the_limit(
    searched: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "so it was itself the limit" not in searched.tune().stdout
    monkeypatch.setattr(tuning, "Meter", partial(Meter, generator_cpu=0.93))
    done = searched.tune("--output", "other")
    assert "the generator used up to 93% of one core" in done.stdout
    assert "so it was itself the limit" in done.stdout
    assert json.loads(searched.tune("--output", "third", "--json").stdout)["generator_cpu"] == 0.93


def test_what_is_not_measured_of_the_requests_is_said(
    searched: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "2 of 62 requests were refused"
    monkeypatch.setattr(requests, "answered", lambda _, given: requests.Answered(given, (said,)))
    assert said in searched.tune().stdout
    assert json.loads(searched.tune("--output", "b", "--json").stdout)["remarks"] == [said]
