"""What the commands share: the folder of results, the lines of progress, what becomes of a run."""

from __future__ import annotations

import math
from pathlib import Path

import click
from rich.console import Console

from benchmarks.runs.results import RESULTS, Results
from benchmarks.runs.runners import Plan
from benchmarks.runs.session import Keep
from benchmarks.servers.site import BUILD
from transformer_serving.desk.bench.bounds import fewest_rounds

PLOTS = "plots"
_console = Console(stderr=True)

out_option = click.option(
    "--out", type=click.Path(path_type=Path), default=RESULTS, show_default=False,
    help="Folder for JSON and plots.  [default: benchmarks/results, of a part build/bench]",
)  # fmt: skip


def report(line: str) -> None:
    _console.print(line, highlight=False)


def plan(rounds: int, seconds: float) -> Plan:
    return Plan(seconds=seconds, rounds=rounds, warm_up_s=min(1.0, seconds))


def brief(rounds: int, seconds: float = math.inf) -> bool:
    """Whether a run says less than a stored one: of too few rounds for bounds, or of shorter ones
    than `make bench` has unless it is told."""
    return rounds < fewest_rounds() or seconds < Plan.seconds


def destination(out: Path, tables: bool, *, part: bool) -> tuple[Path, bool]:
    """Where a run goes, and whether documents are made from it.

    A part of what a command measures takes no stored run's place, and no document is of it: the
    rows that it left out would be missing there, or the rounds.
    """
    if not part:
        return out, tables
    return BUILD if out.resolve() == RESULTS.resolve() else out, False


def kept(out: Path) -> Keep:
    """An unfinished run is kept beside the last finished one, in the same form."""
    return lambda results: results.write(_unfinished(out, results))


def finish(results: Results, out: Path, tables: bool) -> None:
    """Store the run, draw its pictures and, with `tables`, renew the documents."""
    from benchmarks.report import documents

    path = out / f"{results.values['kind']}.json"
    results.write(path)
    _unfinished(out, results).unlink(missing_ok=True)
    written = documents.draw(results, out / PLOTS)
    report(f"{path} and {len(written)} plots")
    if tables:
        documents.write(out)


def _unfinished(out: Path, results: Results) -> Path:
    return out / f"{results.values['kind']}.unfinished.json"
