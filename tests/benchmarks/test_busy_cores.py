"""How busy the machine is before the first round: who is told, waited for and stored."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks.runs import busy_cores, session
from benchmarks.runs.busy_cores import MOST_BUSY, Busy, busy_of, look, wait_until_idle
from benchmarks.runs.results import Results
from benchmarks.runs.runners import Plan
from benchmarks.servers.process import Child, tree
from benchmarks.servers.running import Running
from benchmarks.servers.site import Site
from tests.benchmarks.test_everything import values

IDLE = Busy(0.05, 0.04, "app", 0.02)
BUSY = Busy(1.5, 0.9, "app", 0.85)


def looks(*found: Busy) -> Callable[[], Busy]:
    left = iter(found)
    return lambda: next(left)


def test_an_idle_machine_is_not_told() -> None:
    said: list[str] = []
    assert wait_until_idle(looks(IDLE), said.append, 120.0) is IDLE
    assert said == []


def test_a_busy_machine_is_told_and_waited_for() -> None:
    said: list[str] = []
    assert wait_until_idle(looks(BUSY, BUSY, IDLE), said.append, 120.0) is IDLE
    assert said == [
        "1.50 cores are busy, 0.90 with what this run started; app takes the most, 0.85: waiting "
        "up to 120 s for an idle machine"
    ]


def test_after_its_time_the_run_goes_on_and_says_so() -> None:
    said: list[str] = []
    assert wait_until_idle(looks(BUSY), said.append, 0.0) is BUSY
    assert said[1:] == [
        "1.50 cores are busy, 0.90 with what this run started; app takes the most, 0.85, still: "
        "the rounds begin beside it"
    ]


def test_the_runs_own_processes_are_counted_apart_under_their_names() -> None:
    cores = {1: 0.3, 2: 0.3, 3: 0.5, 4: -0.1}
    found = busy_of(cores, {1: "app", 2: "app", 4: "gateway"}, 1.25)
    assert (found.cores, found.own, found.most) == (1.25, 0.6, "app")
    assert found.most_cores == 0.6
    # What has ended since has no name any more; and no machine is less busy than the run itself.
    found = busy_of({2**30: 0.7, 1: 0.4}, {1: "app"}, 0.0)
    assert found == Busy(0.4, 0.4, "somebody else", 0.7)
    assert busy_of({}, {}, 0.0) == Busy(0.0, 0.0, "nobody", 0.0)


def test_what_works_is_seen_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy_cores, "LOOK_S", 0.5)
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as spinner:
        try:
            assert spinner.stdout is not None
            spinner.stdout.readline()
            busy = look(lambda: {"spinner": tree(spinner.pid)})
            nobodys = look(dict)
        finally:
            spinner.kill()
    assert busy.cores >= busy.own > 0
    assert nobodys.own == 0
    assert nobodys.most != "spinner"


def test_a_runs_processes_have_the_names_that_it_says(tmp_path: Path) -> None:
    child = Child("app-1", ["sleep", "60"], tmp_path / "app.log")
    child.start()
    (tmp_path / "supervisor.pid").write_text(str(2**30), "utf-8")
    try:
        [process] = child.tree()
        opened: Any = Site(tmp_path, None, tmp_path, {}, "", 0)  # type: ignore[arg-type]
        named = session._named(opened, {"app": Running("", (child,))})
        assert named["app"] == [process]
        # It is below the benchmark too: the last name is the one that counts.
        assert process in named["the benchmark itself"]
        assert list(named)[-1] == "app"
        assert psutil.Process() in named["the benchmark itself"]
    finally:
        child.stop()


def test_a_session_looks_once_its_servers_are_up(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Any = SimpleNamespace(models=None)
    monkeypatch.setattr(session, "open_site", lambda *given, **options: opened)
    monkeypatch.setattr(session, "close_site", lambda site: None)
    monkeypatch.setattr(session, "look", lambda named: BUSY)
    waited: list[float] = []

    def wait(look: Callable[[], Busy], report: Any, within_s: float) -> Busy:
        waited.append(within_s)
        return look()

    monkeypatch.setattr(session, "wait_until_idle", wait)
    for within_s in (7.0, 0.0):
        plan = Plan(idle_within_s=within_s)
        with session.session((), plan, lambda line: None, by_ab=False) as found:
            stored = found.around["machine"].get("busy_before")
            assert stored == (BUSY.stored() if within_s else None)
    assert waited == [7.0]


def test_the_stamp_says_only_how_busy_a_busy_machine_was() -> None:
    stored = values()
    before = Results(stored).provenance()
    assert "; load 0.1 before; medians" in before
    stored["machine"]["busy_before"] = Busy(MOST_BUSY, 0.2, "app", 0.2).stored()
    assert Results(stored).provenance() == before
    stored["machine"]["busy_before"] = BUSY.stored()
    assert (
        "; load 0.1 before, 1.50 cores busy when the rounds began, the most with app (0.85); "
        "medians" in Results(stored).provenance()
    )
