"""One peer's end must not cost the others' figures; and the small pieces of the parts."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.report import budgets
from benchmarks.runs import rounds
from benchmarks.runs.loads import SEED, SINGLE
from benchmarks.runs.results import Results
from benchmarks.servers.peers import PEERS, Peer
from benchmarks.studies.parts.worker_memory import slope


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
