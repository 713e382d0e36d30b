"""`tune ENDPOINT`: the settings that make it fastest on this machine, for one's own requests.

Tested by tests/cli/test_tune.py and tests/stack/test_tune.py.
"""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transformer_serving.desk.cli.options import json_option, sign_option, state_option
from transformer_serving.desk.cli.tables import table_console
from transformer_serving.desk.number import Number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from transformer_serving.desk.bench.bounds import Spread
    from transformer_serving.desk.tune.search import Raced, Rival, Verdict
    from transformer_serving.desk.tune.tuning import Tuned


@click.command()
@click.argument("endpoint")
@click.option("--requests", "file", type=click.Path(path_type=Path), metavar="FILE",
              help="What is asked: a line a request, a body as JSON or a text.")  # fmt: skip
@click.option("--lengths", metavar="WORDS:WEIGHT,...",
              help="Or texts of so many words, such as 8-32:70,100-200:30.")  # fmt: skip
@click.option("--goal", default="throughput", show_default=True, metavar="GOAL",
              help="throughput: texts a second; p99<=50ms: as many as keep that "
              "p99 for clients who wait for their answers; size for 70 % of it.")  # fmt: skip
@click.option("--bundle", "bundles", type=click.Path(path_type=Path), multiple=True,
              metavar="BUNDLE", help="Repeatable: the same model in several precisions, to choose "
              "among.  [default: what ENDPOINT serves]")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path), metavar="BUNDLE",
              help="The tuned bundle; its gateway's variables are in BUNDLE.env.  "
              "[default: ENDPOINT-tuned]")  # fmt: skip
@click.option("--from", "begin", default="", metavar="KNOB=VALUE,...",
              help="Begin there: precision, threads, buckets, call_tokens, calls, instances, "
              "workers.  [default: the first bundle's, and this environment's]")  # fmt: skip
@click.option("--compare", metavar="KNOB=VALUE,...",
              help="Race the result against this setting too, and print the bound.")  # fmt: skip
@click.option("--only", multiple=True, metavar="KNOB",
              help="Turn this knob alone; repeatable.")  # fmt: skip
@click.option("--clients", type=click.IntRange(1, 1024), default=64, show_default=True,
              help="Of a closed loop, for --goal throughput.")  # fmt: skip
@click.option("--seconds", type=Number(0.05, 60), default=1.0, show_default=True,
              help="Length of each load.")  # fmt: skip
@click.option("--minutes", type=Number(0.1, 240), default=10.0, show_default=True,
              help="How long all of it may take.")  # fmt: skip
@click.option("--anyway", is_flag=True, help="Also while the served stack has traffic.")
@sign_option
@state_option
@json_option
def tune(endpoint: str, file: Path | None, lengths: str | None, goal: str,
         bundles: tuple[Path, ...], output: Path | None, begin: str, compare: str | None,
         only: tuple[str, ...], clients: int, seconds: float, minutes: float, anyway: bool,
         sign_key: Path | None, state: str | None, as_json: bool) -> None:  # fmt: skip
    """Search the fastest settings of ENDPOINT, on a stack of its own beside the served one."""

    from transformer_serving.desk.cli.deploy import deploy_target
    from transformer_serving.desk.cli.progress import Phases, plain_console
    from transformer_serving.desk.cli.signing import key_of
    from transformer_serving.desk.deploy.endpoint import check_name
    from transformer_serving.desk.local.record import state_directory
    from transformer_serving.desk.tune import tuning
    from transformer_serving.desk.tune.goal import read_goal
    from transformer_serving.desk.tune.knobs import knobs_named

    if (file is None) == (lengths is None):
        raise click.UsageError("what is asked: give --requests FILE, or --lengths")
    check_name(endpoint)
    target = output or Path(f"{endpoint}-tuned")
    request = tuning.TuneRequest(
        endpoint, state_directory(state), target, bundles, file, lengths, read_goal(goal), begin,
        compare, knobs_named(only), clients, seconds, minutes, anyway, key_of(sign_key),
    )  # fmt: skip
    console = plain_console(stderr=as_json)
    found: list[Tuned] = []
    try:
        with Phases(console).phase("tuning") as phases:
            found.append(
                tuning.tune(request, lambda: deploy_target(state), phases.report, found.append)
            )
    finally:
        # Also where the end fails: ten minutes of search hold.
        if found and as_json:
            click.echo(json.dumps(values(found[-1]), indent=2))
        elif found:
            _show(found[-1], endpoint, target, request.state, console)


def values(tuned: Tuned) -> dict[str, Any]:
    """As --json has it; what is not written is null."""
    bundle = tuned.bundle
    return {
        "bundle": bundle and str(bundle.folder),
        "bundle_version": bundle and bundle.manifest.bundle_version,
        "environment": tuned.setting.gateway,
        "environment_file": tuned.environment and str(tuned.environment),
        "setting": asdict(tuned.setting),
        "begun": asdict(tuned.begun),
        "races": [_finite(asdict(one)) for one in tuned.races],
        "verdicts": [_finite(asdict(one)) for one in tuned.verdicts],
        "seconds": tuned.seconds,
        "requests": tuned.requests,
        "requests_measured": tuned.measured,
        "remarks": tuned.remarks,
        "open_loop": tuned.open and _finite(asdict(tuned.open)),
        "generator_cpu": tuned.generator_cpu,
    }


def _finite(found: Any) -> Any:
    """JSON has no infinity, which is the ratio to what answered nothing."""
    if isinstance(found, dict):
        return {name: _finite(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [_finite(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _show(tuned: Tuned, endpoint: str, target: Path, state: Path, console: Console) -> None:
    from transformer_serving.desk.command_line import command_line

    table_console().print(table(tuned))
    for verdict in tuned.verdicts:
        console.print(line(verdict), soft_wrap=True, highlight=False)
    for said in (*open_line(tuned), share(tuned), *tuned.remarks, *generator(tuned)):
        console.print(said, soft_wrap=True, highlight=False)
    if tuned.bundle is None:
        console.print(
            f"the result is {tuned.setting}, and is not written whole: tune did not end well; "
            f"again from there: --from {tuned.setting}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
        return
    console.print(
        f"{target} is the tuned bundle, {tuned.environment} what its gateway runs with; serve it: "
        f"{command_line(f'deploy {shlex.quote(str(target))} --endpoint {endpoint}', state)}",
        soft_wrap=True, highlight=False,
    )  # fmt: skip


def table(tuned: Tuned) -> Table:
    """Each race; ratios are to the value that was kept."""
    from rich.table import Table

    rows = Table(box=None, header_style="bold")
    for name in ("", "value", "texts/s", "times the kept one", "rounds"):
        rows.add_column(
            name, justify="right" if name in ("texts/s", "rounds") else "left", no_wrap=True
        )
    rows.add_column("", overflow="fold")
    for race in tuned.races:
        cells = [_cells(one, race) for one in race.rivals]
        if race.why_not or not cells:
            cells.insert(0, (str(tuned.setting.value(race.knob)), "", "", "", race.why_not))
        for number, row in enumerate(cells):
            rows.add_row("" if number else race.knob, *row)
    return rows


def _cells(rival: Rival, race: Raced) -> tuple[str, ...]:
    if rival.why_not:
        return str(rival.value), "", "", "", f"left out: {rival.why_not}"
    return (
        str(rival.value), f"{rival.median:.0f}",
        "" if rival.chosen or rival.ratio is None else ratio(rival.ratio), str(rival.rounds),
        _said(rival, race),
    )  # fmt: skip


def _said(rival: Rival, race: Raced) -> str:
    """What was surely better is named where it is not the kept one."""
    if rival.chosen:
        if race.wide:
            return "kept for the races that follow"
        return "kept" + (", the largest tried" if _is_largest(rival, race) else "")
    if rival.lost_to is None:
        return "no sure difference"
    kept = next(str(one.value) for one in race.rivals if one.chosen)
    return "surely worse" + ("" if rival.lost_to == kept else f" than {rival.lost_to}")


def _is_largest(rival: Rival, race: Raced) -> bool:
    """Of numbers that were raced, where 0 is no number but a rule."""
    numbers = [one.value for one in race.rivals if isinstance(one.value, int) and not one.why_not]
    return len(numbers) > 1 and 0 not in numbers and rival.value == max(numbers)


def ratio(spread: Spread) -> str:
    """With its bounds, where there were rounds enough for any."""
    from transformer_serving.desk.tune.search import is_bounded

    bounds = f" ({spread.lower:.2f} to {spread.upper:.2f})" if is_bounded(spread) else ""
    return f"{spread.median:.2f}{bounds}"


def line(verdict: Verdict) -> str:
    """The result beside another setting, in a sentence."""
    found = verdict.ratio
    if found is None:
        return (
            f"the result is not held against {verdict.name}, which failed: "
            f"{verdict.why_not}; {verdict.name} is {verdict.setting}"
        )
    return (
        f"the result does {verdict.result:.0f} texts/s, {verdict.name} {verdict.other:.0f}: "
        f"{found.median:.2f} times ({found.lower:.2f} to {found.upper:.2f}, each bound 95 % sure) "
        f"in {found.rounds} rounds; {verdict.name} is {verdict.setting}"
    )


def open_line(tuned: Tuned) -> list[str]:
    """What callers get who do not wait for each other."""
    if tuned.open is None:
        return []
    p99_ms = tuned.open.p99_ms
    took = f"p99 {p99_ms:.0f} ms" if math.isfinite(p99_ms) else "not all answered with 200"
    return [
        "that is of clients who wait for their answers; of callers at random moments, "
        f"{tuned.open.texts:.0f} texts/s: {took}"
    ]


def generator(tuned: Tuned) -> list[str]:
    from transformer_serving.desk.cli.bench import generator_notes

    return generator_notes(tuned.generator_cpu)


def share(tuned: Tuned) -> str:
    """How much of what was given the figures are of."""
    said = f"{tuned.measured} of {tuned.requests} requests were measured"
    if tuned.measured == tuned.requests:
        return said
    return f"{said}; with longer --seconds and more --minutes it would be more of them"


COMMANDS = (tune,)
