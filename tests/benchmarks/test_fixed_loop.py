"""The machine's own pace: taken before each measurement, stored by round, told below a table."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.runs import fixed_loop, rounds, session
from benchmarks.runs.loads import SEED, SINGLE
from benchmarks.runs.results import Results
from benchmarks.runs.runners import Plan, Runner
from benchmarks.servers.peers import PEERS
from tests.benchmarks.test_everything import values


def test_the_shortest_of_three_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fixed_loop.loop_ms() > 0
    times = iter((10.0, 9.123, 30.0))
    monkeypatch.setattr(fixed_loop, "_once", lambda: next(times))
    assert fixed_loop.loop_ms() == 9.12


def test_a_run_has_its_times_by_round_and_its_parts_after_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = itertools.count(1.0)
    for module in (rounds, session):
        monkeypatch.setattr(module, "loop_ms", lambda: next(times))
    opened = SimpleNamespace(models=SimpleNamespace(title=str))
    monkeypatch.setattr(session, "open_site", lambda *given, **options: opened)
    monkeypatch.setattr(session, "close_site", lambda site: None)
    monkeypatch.setattr(Runner, "measure", lambda *given: {"texts": 1.0})
    kept: list[Any] = []

    def part(opened: session.Session, report: Any) -> int:
        opened.time_loop()
        return 1

    found = session.bench(
        Plan(rounds=2, idle_within_s=0.0), lambda line: None, [PEERS["raw"]], [SEED, SINGLE],
        parts={"part": part},
        keep=lambda results: kept.append(str(results.values["machine"]["loop_ms"])),
    )  # fmt: skip
    assert found.values["machine"]["loop_ms"] == [[1.0, 2.0], [3.0, 4.0], [5.0], [6.0]]
    assert kept[0] == "[[1.0, 2.0]]"
    assert "a fixed loop took 3.5 ms, 1 to 6; medians" in found.provenance()


def test_rounds_without_a_measurement_have_no_times() -> None:
    runner: Any = SimpleNamespace(plan=Plan(rounds=3))
    assert rounds.measure_rounds(runner, (), (), lambda line: None).loop_ms == []


def test_the_stamp_says_the_machines_own_spread() -> None:
    stored = values()
    before = Results(stored).surroundings()
    assert before.endswith("; load 0.1 before")
    stored["machine"]["loop_ms"] = [[10.44, 9.61], [12.3, 17.06]]
    assert Results(stored).surroundings() == f"{before}, a fixed loop took 11.4 ms, 9.61 to 17.1"
