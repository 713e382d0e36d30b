"""What the commands share: the folder of results, the lines of progress, what becomes of a run."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from benchmarks.runs.results import Results
from benchmarks.runs.runners import Plan
from benchmarks.runs.session import Keep

HERE = Path(__file__).parent
PLOTS = "plots"
_console = Console(stderr=True)

out_option = click.option(
    "--out", type=click.Path(path_type=Path), default=HERE / "results", show_default=False,
    help="Folder for JSON and plots.  [default: benchmarks/results]",
)  # fmt: skip


def report(line: str) -> None:
    _console.print(line, highlight=False)


def plan(rounds: int, seconds: float) -> Plan:
    return Plan(seconds=seconds, rounds=rounds, warm_up_s=min(1.0, seconds))


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
