"""`python -m benchmarks COMMAND`: what the make targets call."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click

from benchmarks import study_commands
from benchmarks.command_parts import (
    PLOTS,
    brief,
    destination,
    finish,
    kept,
    out_option,
    plan,
    report,
)
from benchmarks.runs.results import RESULTS, Results
from benchmarks.runs.runners import Plan
from benchmarks.servers import choice
from benchmarks.servers.process import Unusable
from transformer_serving.desk.failure import Failure

GPU = "gpu"


@click.group(help="Measure the kit beside its peers.")
def main() -> None:
    """The commands below and in study_commands.py."""


for _command in study_commands.COMMANDS:
    main.add_command(_command)

_rounds = click.option("--rounds", type=click.IntRange(1), default=Plan.rounds, show_default=True)
_seconds = click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=Plan.seconds, show_default=True,
    help="Length of one measurement.",
)  # fmt: skip
_tables = click.option(
    "--tables/--no-tables",
    default=True,
    help="Also write the tables of README and docs, of a whole run.",
)


def _measuring(command: Callable[..., None]) -> Callable[..., None]:
    """The options of every command that measures."""
    for option in (_tables, _seconds, _rounds, out_option):
        command = option(command)
    return command


@main.command()
@_measuring
@click.option(
    "--only",
    multiple=True,
    metavar="PEER",
    help="Only this one, also of bench-all's; may be repeated.",
)
@click.option(
    "--load", "named", multiple=True, metavar="LOAD",
    help="Only under this one, also of bench-all's; may be repeated.",
)  # fmt: skip
def bench(
    out: Path, rounds: int, seconds: float, tables: bool, only: tuple[str, ...],
    named: tuple[str, ...],
) -> None:  # fmt: skip
    """The side by side of README, about 15 minutes on two idle cores."""
    from benchmarks.runs import loads, session
    from benchmarks.servers import peers

    out, tables = destination(out, tables, part=bool(only or named) or brief(rounds, seconds))
    found = session.bench(
        plan(rounds, seconds), report, peers.chosen(only), loads.chosen(named), keep=kept(out)
    )
    finish(found, out, tables)


@main.command()
@out_option
@click.argument("again", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def agreement(out: Path, again: Path) -> None:
    """Whether the bench.json of another run, AGAIN, agrees with the stored one."""
    from benchmarks.report import agreement as found

    click.echo(found.text(Results.read(out / "bench.json"), Results.read(again)))


@main.command("all")
@_measuring
@click.option("--part", multiple=True, metavar="NAME", help="Renew only this part of a stored run.")
def everything(out: Path, rounds: int, seconds: float, tables: bool, part: tuple[str, ...]) -> None:
    """Every peer, worker counts, two endpoints, overload and cost curves."""
    from benchmarks.report import documents
    from benchmarks.report.budgets import ALL
    from benchmarks.runs import loads, session
    from benchmarks.servers import peers
    from benchmarks.studies import curves

    parts = dict(zip(part, choice.chosen("part", part, curves.PARTS), strict=True)) or curves.PARTS
    stored = documents.file_of(out, ALL)
    if part and stored is None:
        raise Failure(f"no {ALL}.json to renew in {out}: run it without --part first", exit_code=2)
    out, tables = destination(out, tables, part=brief(rounds))
    found = session.bench(
        plan(rounds, seconds), report,
        [peers.PEERS["gateway"]] if part else list(peers.PEERS.values()),
        () if part else list(loads.LOADS.values()),
        kind=ALL, parts=parts, keep=kept(out),
    )  # fmt: skip
    if part and stored:
        found = Results.read(stored).renewed(found, part)
    finish(found, out, tables)


@main.command()
@_measuring
@click.option(
    "--load-seconds", type=click.FloatRange(2), default=180.0, show_default=True,
    help="How long a worker's memory is watched under load.",
)  # fmt: skip
@click.option("--clone/--no-clone", default=True, help="Also `make up` in a fresh clone.")
def budgets(
    out: Path, rounds: int, seconds: float, tables: bool, load_seconds: float, clone: bool
) -> None:
    """Cold starts, memory, a neighbour's batches, starts of the stack; about 10 minutes."""
    from benchmarks.runs import session
    from benchmarks.servers.peers import PEERS
    from benchmarks.studies.parts import measured

    out, tables = destination(out, tables, part=not clone or brief(rounds, seconds))
    peers = [PEERS[name] for name in ("gateway", "null-gateway")]
    found = session.bench(
        plan(rounds, seconds), report, peers, (), kind="budgets",
        parts=measured(load_seconds, clone=clone), keep=kept(out),
    )  # fmt: skip
    finish(found, out, tables)


@main.command()
@out_option
@click.option(
    "--seconds", type=click.FloatRange(1), default=60.0, show_default=True,
    help="Length of one load.",
)  # fmt: skip
@click.option(
    "--engine", "engines", type=click.IntRange(1), multiple=True, metavar="TEXTS",
    help="Only a sleeping engine of so many texts a second; may be repeated.",
)  # fmt: skip
@click.option("--real/--no-real", default=True, help="Also the real engine.")
@click.option("--tables/--no-tables", default=True, help="Also write docs/performance.md's part.")
def overload(out: Path, seconds: float, engines: tuple[int, ...], real: bool, tables: bool) -> None:
    """Four times more than engines can do, and callers that leave; about 15 minutes."""
    from benchmarks.report import documents
    from benchmarks.runs import session
    from benchmarks.studies import overload as part

    out, tables = destination(out, tables, part=bool(engines) or not real)
    measured = part.Overload(seconds, engines or part.SLEEPING, real)
    found = session.bench(
        plan(1, 1.0), report, (), (), kind=documents.OVERLOAD,
        parts={"overload": measured}, keep=kept(out), models=session.demo_models(report),
    )  # fmt: skip
    finish(found, out, tables)


@main.command()
@out_option
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=8.0, show_default=True)
@click.option(
    "--size", "sizes", multiple=True, metavar="NAME", help="Only gpt2, or qwen2; may be repeated."
)
@click.option("--tables/--no-tables", default=True, help="Also write docs/performance.md's part.")
def generation(
    out: Path, rounds: int, seconds: float, sizes: tuple[str, ...], tables: bool
) -> None:
    """Generated tokens a second beside the seed's recipe and the engine alone; about an hour.

    A size that is left out keeps what is stored of it, and so does a processor with other
    instructions; each run has its date.
    """
    from benchmarks.report import documents, generation_tables
    from benchmarks.runs import session
    from benchmarks.servers.language_models import SIZES
    from benchmarks.studies.generation import Generation

    out, tables = destination(out, tables, part=brief(rounds))
    chosen = tuple(choice.chosen("size", sizes, {one.name: one for one in SIZES})) or SIZES
    found = session.bench(
        plan(rounds, seconds), report, (), (), kind=documents.GENERATION,
        parts={"generation": Generation(rounds, seconds, chosen)}, keep=kept(out),
        models=session.demo_models(report),
    )  # fmt: skip
    path = documents.file_of(out, documents.GENERATION)
    finish(generation_tables.joined(found, Results.read(path) if path else None), out, tables)


@main.command("check-gpu")
@click.option(
    "--out", type=click.Path(path_type=Path), default=RESULTS / GPU, show_default=False,
    help="Folder of the steps' JSON.  [default: benchmarks/results/gpu]",
)  # fmt: skip
@click.option("--step", "names", multiple=True, metavar="STEP", help="Only this; may be repeated.")
@click.option("--list", "show", is_flag=True, help="Print the steps and what each lacks here.")
@click.option("--again", is_flag=True, help="Also the steps that are stored of this machine.")
@click.option("--page/--no-page", default=True, help="Also write docs/gpu.md's part.")
@click.option("--json", "as_json", is_flag=True, help="Print the steps and their states as JSON.")
@click.option("--here", is_flag=True, hidden=True, help="In this process: how a step is started.")
def check_gpu(
    out: Path,
    names: tuple[str, ...],
    show: bool,
    again: bool,
    page: bool,
    as_json: bool,
    here: bool,
) -> None:
    """What the kit does on this machine's GPU, in steps of at most 8 minutes; see docs/gpu.md."""
    from benchmarks.report import documents
    from benchmarks.studies.gpu import needs, steps

    if show:
        lacks = needs.missing()
        for step in steps.STEPS:
            wanted = [lacks[name] for name in step.needs if name in lacks]
            click.echo(f"{step.name:24} {'; '.join(wanted) or step.title}")
        return
    chosen = steps.chosen(names)
    if here:
        for step in chosen:
            steps.run_step(step, out, report)
        return
    found = steps.run_all(chosen, out, report, again=again or bool(names))
    if page:
        documents.write_gpu(steps.all_stored(out), steps.NAMES)
    states = {one["step"]: one["state"] for one in found}
    if as_json:
        click.echo(json.dumps(states, indent=2))
    if failed := [name for name, state in states.items() if state == steps.FAILED]:
        raise Failure(f"{', '.join(failed)} failed; the reasons are in {out}")


@main.command()
@out_option
@click.option("--seconds", type=click.FloatRange(1), default=10.0, show_default=True)
def flames(out: Path, seconds: float) -> None:
    """Flame graphs of workers and backend under the seed's load."""
    from benchmarks.studies import flames as pictures

    for path in pictures.draw(seconds, report, out / "flames"):
        report(str(path))


@main.command()
@out_option
def autoscaling(out: Path) -> None:
    """A computed day of load under several autoscalers, into docs/kubernetes.md; half a minute."""
    from benchmarks.studies import autoscaling_page as page
    from benchmarks.studies.autoscaling import courses

    found = courses()
    page.write(found)
    for path in page.draw(found, out / PLOTS):
        report(str(path))


@main.command()
@out_option
def tables(out: Path) -> None:
    """Write README's tables and those of docs/ again from the stored results."""
    from benchmarks.report import documents
    from benchmarks.studies.gpu import steps

    for kind in documents.KINDS:
        if path := documents.file_of(out, kind):
            documents.draw(Results.read(path), out / PLOTS)
    documents.write(out)
    documents.write_gpu(steps.all_stored(out / GPU), steps.NAMES)


def _end(number: int, frame: object) -> None:
    """Ended from outside, a run still stops what it started; a second signal must not stop that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    try:
        main(standalone_mode=False)
    except (Failure, Unusable) as failure:
        click.echo(f"error: {failure}", err=True)
        raise SystemExit(getattr(failure, "exit_code", 1)) from None
    except click.ClickException as failure:
        click.echo(f"error: {failure.format_message()}", err=True)
        raise SystemExit(failure.exit_code) from None
