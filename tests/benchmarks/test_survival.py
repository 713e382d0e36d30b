"""One peer's end must not cost the others' figures; and the small pieces of the parts."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.__main__ import main
from benchmarks.report import budgets
from benchmarks.runs import rounds, session
from benchmarks.runs.loads import SEED, SINGLE
from benchmarks.runs.results import Results
from benchmarks.runs.runners import Plan
from benchmarks.servers import machine, site
from benchmarks.servers.models import Models
from benchmarks.servers.peers import PEERS, Peer
from benchmarks.servers.process import Unusable, tree
from benchmarks.servers.site import open_site
from benchmarks.studies import idle
from benchmarks.studies.parts import demo_stack
from benchmarks.studies.parts.worker_memory import slope
from transformer_serving.desk.failure import Failure


class DyingRunner:
    """`app` ends in the second round, in a way that nobody foresaw."""

    def __init__(self) -> None:
        self.plan = SimpleNamespace(rounds=4)
        self.asked: list[tuple[str, str]] = []

    def measure(self, peer: Peer, load: Any) -> dict[str, float]:
        self.asked.append((peer.name, load.name))
        if peer.name == "app" and len(self.asked) > 4:
            raise ConnectionRefusedError("it is gone")
        return {"texts": 1.0}


def test_a_peer_that_dies_is_named_and_the_others_are_measured() -> None:
    kept: list[int] = []
    lines: list[str] = []
    runner: Any = DyingRunner()
    outcome = rounds.measure_rounds(
        runner, [PEERS["gateway"], PEERS["app"]], [SEED, SINGLE], lines.append,
        lambda so_far: kept.append(len(so_far.figures["gateway", "seed"])),
    )  # fmt: skip
    assert kept == [1, 2, 3, 4]
    assert outcome.figures["gateway", "seed"] == [{"texts": 1.0}] * 4
    assert outcome.figures["app", "seed"] == [{"texts": 1.0}, None, None, None]
    assert outcome.failed["app (seed)"] == "ConnectionRefusedError: it is gone"
    # Two tries under each load, then it is left alone.
    assert runner.asked.count(("app", "seed")) == 3
    assert "left" in lines[-1]


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (("overload", "--seconds", "1"), "overload"),
        (("growth", "--rounds", "1"), "growth"),
        (("all", "--rounds", "1", "--part", "two_endpoints"), "two_endpoints"),
    ],
)
def test_a_run_without_a_figure_takes_no_stored_ones_place(
    command: tuple[str, ...], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The part fails where it looks for its stack, of which there is none here."""

    @contextlib.contextmanager
    def without_a_stack(*given: Any, **options: Any) -> Iterator[session.Session]:
        missing: Any = SimpleNamespace(models=SimpleNamespace(title=str))
        runner: Any = SimpleNamespace(plan=Plan(rounds=1))
        yield session.Session(missing, {}, runner, (), {})

    monkeypatch.setattr(session, "session", without_a_stack)
    monkeypatch.setattr(session, "demo_models", lambda report: None)
    kind = "bench-all" if command[0] == "all" else command[0]
    stored = {"kind": kind, "peers": [], "figures": [], "failed": {}, part: {"of": "before"}}
    path = tmp_path / f"{kind}.json"
    path.write_text(json.dumps(stored), "utf-8")
    with pytest.raises(Failure, match=f"nothing was measured.*; {part}: ") as failed:
        main([*command, "--no-tables", "--out", str(tmp_path)], standalone_mode=False)
    assert failed.value.exit_code == 1
    assert json.loads(path.read_text("utf-8")) == stored
    # What there is stands beside it, as of a run that was ended.
    unfinished = Results.read(tmp_path / f"{kind}.unfinished.json")
    assert unfinished.failed.keys() == {part}
    assert not (tmp_path / "plots").exists()


def test_one_part_that_was_measured_is_enough() -> None:
    empty = {"peers": [], "figures": [{"peer": "a", "load": "seed", "rounds": [None]}]}
    assert not session._has_figures(Results(empty), ["restart"])
    assert session._has_figures(Results({**empty, "restart": []}), ["restart", "neighbour"])
    rounds = {"figures": [{"peer": "a", "load": "seed", "rounds": [None, {"texts": 1.0}]}]}
    assert session._has_figures(Results({**empty, **rounds}), [])


def test_a_run_is_of_the_moment_at_which_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who goes on working while it runs changes commit and versions for the next one."""

    def now(text: str) -> None:
        for name in ("today", "commit"):
            monkeypatch.setattr(machine, name, lambda: text)
        monkeypatch.setattr(machine, "versions", lambda: {"torch": text})

    def opening(*given: Any, **options: Any) -> Any:
        now("later")
        return SimpleNamespace(models=SimpleNamespace(title=str))

    monkeypatch.setattr(session, "open_site", opening)
    monkeypatch.setattr(session, "close_site", lambda opened: None)
    now("at first")
    parts = {"part": lambda opened, report: 1}
    found = session.bench(Plan(rounds=1, idle_within_s=0.0), print, (), (), parts=parts)
    assert (found.values["date"], found.values["commit"]) == ("at first", "at first")
    assert found.values["versions"] == {"torch": "at first"}
    assert found.values["machine"]["cores"] >= 1


def test_what_a_part_has_stored_stays_where_it_fails_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = SimpleNamespace(models=SimpleNamespace(title=str))
    monkeypatch.setattr(session, "open_site", lambda *given, **options: opened)
    monkeypatch.setattr(session, "close_site", lambda site: None)
    kept: list[Any] = []

    def part(opened: session.Session, report: Any) -> Any:
        opened.so_far({"first": 1})
        assert kept[-1] == {"first": 1}
        raise Unusable("no memory")

    found = session.bench(
        Plan(rounds=1, idle_within_s=0.0), print, (), (), parts={"part": part},
        keep=lambda results: kept.append(results.values.get("part")),
    )  # fmt: skip
    assert found.values["part"] == {"first": 1}
    assert found.failed == {"part": "no memory"}


def test_who_begins_changes_from_round_to_round() -> None:
    runner: Any = DyingRunner()
    rounds.measure_rounds(runner, [PEERS["gateway"], PEERS["empty"]], [SEED], lambda line: None)
    assert [name for name, _ in runner.asked] == [
        "gateway", "empty", "empty", "gateway", "gateway", "empty", "empty", "gateway",
    ]  # fmt: skip


def test_the_slope_is_that_of_the_second_half() -> None:
    assert slope([(0.0, 50.0), (1.0, 100.0), (2.0, 102.0), (3.0, 104.0)]) == pytest.approx(2.0)
    assert slope([(0.0, 50.0)]) is None


def test_a_budget_of_too_few_rounds_is_not_called_met() -> None:
    results = Results({
        "peers": [], "figures": [],
        "cold_start": {"gateway, ours": [{"first_ms": 2.2, "later_ms": 2.0}] * 3},
    })  # fmt: skip
    first = next(row for row in budgets.BUDGETS if row.text.startswith("first request"))
    verdict = budgets.Verdict(first, first.figure(results))
    assert verdict.word == "needs 7 rounds"
    enough = dataclasses.replace(first, rounds=3)
    assert budgets.Verdict(enough, first.figure(results)).word == "met"
    strict = dataclasses.replace(enough, wanted=1.0)
    assert budgets.Verdict(strict, first.figure(results)).word == "missed by 0.10"


def test_a_parts_use_is_that_of_all_its_processes() -> None:
    with subprocess.Popen(
        ["sh", "-c", "sleep 30 & echo started; wait"], stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"started\n"
        found = tree(child.pid)
        used = idle.use_of(found)
        assert len(found) == 2
        assert used.largest < used.rss == sum(one.memory_info().rss for one in found)
        assert 0 < used.pss <= used.rss
        assert used.cpu_s < 30
        for one in found:
            one.kill()
    # The first of them has been waited for.
    assert idle.use_of(found[:1]) == idle.PartUse(0.0, 0, 0, 0)


def test_the_stacks_budgets_are_judged_by_its_parts() -> None:
    part = {"core_percent": 0.8, "rss_mb": 190.0, "pss_mb": 150.0, "largest_mb": 170.0,
            "after_load": 1.3}  # fmt: skip
    stored: Any = SimpleNamespace(values={"demo_stack": {"inference": part}})
    judged = {
        verdict.budget.text: verdict.word for verdict in budgets.judge({budgets.STARTS: stored})
        if "the demo's stack" in verdict.budget.text
    }  # fmt: skip
    assert judged == {
        "the demo's stack, nobody asks: the gateway": "met",
        "the demo's stack, nobody asks: the controller": "not measured",
        "the demo's stack: memory of its worker": "met",
        "the demo's stack: memory of its worker after a load, of that before": "missed by 0.10",
    }
    assert "| inference | 0.80 | 190 | 150 | 170 |" in idle.idle_table({"inference": part})


def test_what_a_killed_run_left_is_stopped_before_its_record_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def command(name: str, state: Path, *arguments: str) -> str:
        said.append(f"{name} {state.relative_to(tmp_path / 'run')} {state.is_dir()}")
        if name == "up":
            raise Unusable("far enough")
        return ""

    monkeypatch.setattr(site, "stack_command", command)
    for left in ("stack", "demo-stack", "clone/.stack"):
        (tmp_path / "run" / left).mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(Unusable, match="far enough"):
            open_site(tmp_path / "run", said.append, null=False, models=Models(tmp_path, {}))
    assert said == [
        "stopping what an earlier run may have left", "down stack True",
        "stopping what an earlier run may have left", "down demo-stack True",
        "stopping what an earlier run may have left", "down clone/.stack True",
        "starting the stack", "up stack False", "down stack False",
        "starting the stack", "up stack False", "down stack False",
    ]  # fmt: skip


@pytest.mark.parametrize("how", [Unusable, KeyboardInterrupt, SystemExit])
def test_of_a_demos_stack_that_does_not_start_nothing_runs_on(
    how: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def command(name: str, state: Path, *arguments: str) -> str:
        said.append(f"{name} {state.name}")
        if name == "up":
            raise how
        return ""

    monkeypatch.setattr(demo_stack, "stack_command", command)
    session: Any = SimpleNamespace(site=SimpleNamespace(work=tmp_path))
    with pytest.raises(how):
        demo_stack.DemoStack(1.0)(session, lambda line: None)
    assert said == ["up demo-stack", "down demo-stack"]
