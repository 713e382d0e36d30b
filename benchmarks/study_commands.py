"""The commands of single studies: growth, bundles, pollers; `__main__` adds them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks.command_parts import brief, destination, finish, kept, out_option, plan, report
from benchmarks.servers.site import OURS
from transformer_serving.desk.failure import Failure


@click.command()
@out_option
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(0.5), default=1.5, show_default=True,
    help="Length of one load.",
)  # fmt: skip
@click.option("--tables/--no-tables", default=True, help="Also write docs/growth.md's part.")
def growth(out: Path, rounds: int, seconds: float, tables: bool) -> None:
    """Processor time a request by clients, endpoints, workers and Tritons; about 8 minutes."""
    from benchmarks.report import documents
    from benchmarks.runs import session
    from benchmarks.studies.growth import Growth

    out, tables = destination(out, tables, part=brief(rounds))
    found = session.bench(
        plan(rounds, seconds), report, (), (), kind=documents.GROWTH,
        parts={"growth": Growth(rounds, seconds)}, keep=kept(out),
        models=session.demo_models(report),
    )  # fmt: skip
    finish(found, out, tables)


@click.command()
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=3.0, show_default=True)
def workers(rounds: int, seconds: float) -> None:
    """1, 2 and 4 gateway workers before an engine that sleeps; prints, stores nothing."""
    from benchmarks.runs import session
    from benchmarks.studies.workers import Workers

    found = session.bench(
        plan(1, 1.0), report, (), (), kind="workers",
        parts={"workers": Workers(rounds=rounds, seconds=seconds)},
        models=session.demo_models(report),
    )  # fmt: skip
    click.echo(json.dumps(found.values["workers"], indent=2))


@click.command()
@click.option("--scrapes", type=click.IntRange(1), default=30, show_default=True)
def scrape(scrapes: int) -> None:
    """A scrape of 1, 10 and 50 endpoints in 4 workers; half a minute; prints, stores nothing."""
    from benchmarks.servers.machine import machine, today, versions
    from benchmarks.studies.scrape import ENDPOINTS, measured

    before = {**machine(), **versions(), "date": today()}
    found = {str(count): measured(count, scrapes=scrapes) for count in ENDPOINTS}
    click.echo(json.dumps({"machine": before, "scrape": found}, indent=2))


@click.command("control-plane")
@click.option("--workers", type=click.IntRange(1), default=50, show_default=True)
@click.option(
    "--interval", "intervals", type=click.FloatRange(1), multiple=True, default=(6.0, 60.0),
    show_default=True, metavar="SECONDS", help="Between two polls; may be repeated.",
)  # fmt: skip
@click.option("--seconds", type=click.FloatRange(1), default=60.0, show_default=True)
def control_plane(workers: int, intervals: tuple[float, ...], seconds: float) -> None:
    """What so many workers cost the embedded control plane; 5 minutes; prints, stores nothing."""
    from benchmarks.servers.machine import machine, today, versions
    from benchmarks.studies.control_plane import measured

    before = {**machine(), **versions(), "date": today()}
    found = measured(workers, intervals, seconds, report)
    click.echo(json.dumps({"machine": before, "control_plane": found}, indent=2))


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="NAME=BUNDLE...")
@click.option(
    "--load", "named", multiple=True, default=("seed", "single", "batch"), show_default=True,
    metavar="LOAD", help="May be repeated.",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=15, show_default=True)
@click.option("--seconds", type=click.FloatRange(0.5), default=1.5, show_default=True)
def bundles(folders: tuple[str, ...], named: tuple[str, ...], rounds: int, seconds: float) -> None:
    """Bundles of one model in one stack, each NAME beside the first; prints, stores nothing."""
    from benchmarks.runs import loads, session
    from benchmarks.servers.machine import machine, today, versions
    from benchmarks.studies.bundles import Bundles

    before = {**machine(), **versions(), "date": today()}
    study = Bundles(_by_name(folders), loads.chosen(named), rounds)
    session.check_tools()
    models = session.demo_models(report)
    wanted = plan(rounds, seconds)
    with session.session([], wanted, report, models=models, by_ab=False) as opened:
        found = study(opened, report)
    click.echo(json.dumps({"machine": before, "bundles": found}, indent=2))


def _by_name(folders: Sequence[str]) -> dict[str, Path]:
    """NAME=BUNDLE as given. Raises Failure (2)."""
    found: dict[str, Path] = {}
    for one in folders:
        name, equals, folder = one.partition("=")
        if not (name and equals and Path(folder).is_dir()):
            raise Failure(f"{one}: wanted is NAME=BUNDLE, an endpoint and a folder", exit_code=2)
        if name in (*found, OURS):
            raise Failure(f"{one}: there is a {name} already; take another name", exit_code=2)
        found[name] = Path(folder)
    return found


COMMANDS = (growth, bundles, workers, scrape, control_plane)
