"""`bench URL`: what an endpoint answers in a second, and how fast.

Tested by tests/bench/test_load.py and tests/bench/test_scaling.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transformer_serving.desk.cli.options import WEEK_S, json_option, key_option
from transformer_serving.desk.cli.tables import table_console, whole_table
from transformer_serving.desk.http import METRICS_KEY_VARIABLE
from transformer_serving.desk.number import Number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from transformer_serving.desk.bench.measure import Bench, Measured
    from transformer_serving.desk.bench.scaling import Scaling
    from transformer_serving.desk.bench.streams import StreamLoad

_MOST_RATE = 100_000
# The moments of an open loop are known before it begins: more of them would fill the memory.
_MOST_REQUESTS = 10_000_000


@click.command()
@click.argument("url")
@click.option("--text", help="The text to send.  [default: ClearML's own example]")
@click.option("--texts", type=click.IntRange(1), default=1, show_default=True, metavar="N",
              help="Texts in one request.")  # fmt: skip
@click.option("--words", type=click.IntRange(1), multiple=True, metavar="N",
              help="Send texts of so many words; may be repeated, to mix lengths.")  # fmt: skip
@click.option("--body", type=click.Path(path_type=Path), metavar="FILE",
              help="Send this file instead, as JSON.")  # fmt: skip
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE",
              help="Send this header too; may be repeated.")  # fmt: skip
@click.option("--concurrency", "-c", type=click.IntRange(1, 10_000), multiple=True, metavar="N",
              help="Clients of a closed loop; repeatable.  [default: 1, 8, 32, 128; with --stream "
              "1, 8, 32]")  # fmt: skip
@click.option("--rate", type=Number(0, _MOST_RATE, min_open=True), metavar="N",
              help="Requests a second of the open loop.  [default: 70 % of the best]")  # fmt: skip
@click.option(
    "--stream",
    is_flag=True,
    help="Ask for streams of generated text; time to the first piece, and between two.",
)
@click.option("--seconds", type=Number(0, WEEK_S, min_open=True), default=5.0, show_default=True,
              help="Length of each load.")  # fmt: skip
@click.option("--for-scaling", is_flag=True,
              help="And print the thresholds for an autoscaler of Tritons, as values of the chart. "
              "URL is that of one pod with one Triton, and nobody else asks it; for a Triton on a "
              "GPU give --texts 32, as the pod's one worker is else the limit.")  # fmt: skip
@click.option("--within", "within_s", type=Number(0, WEEK_S, min_open=True), default=0.5,
              show_default=True, metavar="SECONDS",
              help="Of --for-scaling: in which a text shall have waited and been "
              "computed.")  # fmt: skip
@click.option("--metrics-key", envvar=METRICS_KEY_VARIABLE, show_envvar=True,
              metavar="KEY", help="Key for the gateway's figures.")  # fmt: skip
@key_option
@json_option
def bench(url: str, text: str | None, texts: int, words: tuple[int, ...], body: Path | None,
          headers: tuple[str, ...], concurrency: tuple[int, ...], rate: float | None,
          stream: bool, seconds: float, for_scaling: bool, within_s: float,
          metrics_key: str | None, key: str | None, as_json: bool) -> None:  # fmt: skip
    """Load the endpoint at URL and show answers a second and latencies."""

    from transformer_serving.desk.bench.measure import (
        CONCURRENCY,
        Bench,
        address,
        measure,
        payloads,
    )
    from transformer_serving.desk.bench.scaling import metrics_address, scaling
    from transformer_serving.desk.cli.progress import Phases, plain_console

    _check(rate, seconds, stream=stream, for_scaling=for_scaling)
    sent = payloads(body, text, texts, words, stream=stream)
    wanted = Bench(
        address(url, headers, key), sent, concurrency or CONCURRENCY, rate, seconds,
    )  # fmt: skip
    console = plain_console(stderr=as_json)
    if stream:
        _bench_streams(wanted, concurrency, as_json, console)
        return
    measured: list[Measured] = []
    advice = None
    try:
        with Phases(console).phase("measuring") as phases:
            for row in measure(wanted, phases.report):
                measured.append(row)
            if for_scaling:
                phases.report("counting tokens")
                advice = scaling(wanted, measured, metrics_address(url), metrics_key, within_s)
    finally:
        # Also of a run that fails or is ended: what was measured holds.
        if measured:
            _show(measured, advice, as_json, console)


def _show(
    measured: Sequence[Measured], advice: Scaling | None, as_json: bool, console: Console
) -> None:
    if as_json:
        rows = [asdict(row) for row in measured]
        click.echo(json.dumps([*rows, asdict(advice)] if advice else rows, indent=2))
        return
    table_console().print(table(measured))
    for note in notes(measured):
        console.print(note)
    if advice is not None:
        click.echo(advice.values())


def _check(rate: float | None, seconds: float, *, stream: bool, for_scaling: bool) -> None:
    if rate is not None and rate * seconds > _MOST_REQUESTS:
        raise click.UsageError(
            f"--rate for --seconds is at most {_MOST_REQUESTS} requests, got "
            f"{rate * seconds:.0f}; give less of either"
        )
    if not stream:
        return
    if for_scaling:
        raise click.UsageError("--for-scaling measures whole answers: give it without --stream")
    if rate is not None:
        raise click.UsageError("--rate is of an open loop, and --stream has closed ones alone")


def _bench_streams(
    wanted: Bench, concurrency: tuple[int, ...], as_json: bool, console: Console
) -> None:
    """Closed loops; a body of --body's is sent as it is, and must ask for a stream itself."""
    from transformer_serving.desk.bench import streams
    from transformer_serving.desk.cli.progress import Phases

    loads: list[StreamLoad] = []
    try:
        with Phases(console).phase("measuring") as phases:
            for row in streams.measure_streams(
                wanted.address, wanted.payloads[0], concurrency or streams.CONCURRENCY,
                wanted.seconds, phases.report,
            ):  # fmt: skip
                loads.append(row)
    finally:
        if loads:
            _show_streams(loads, as_json, console)


def _show_streams(loads: Sequence[StreamLoad], as_json: bool, console: Console) -> None:
    if as_json:
        click.echo(json.dumps([asdict(row) for row in loads], indent=2))
        return
    table_console().print(stream_table(loads))
    for row in loads:
        if row.others:
            counts = ", ".join(f"{why}: {count}" for why, count in row.others.items())
            console.print(f"{row.load}: not whole: {counts}")


def stream_table(loads: Sequence[StreamLoad]) -> Table:
    from transformer_serving.desk.bench.figures import shown

    figures = ("streams", "tokens/s", "first ms p50", "p90", "p99", "gap ms p50", "p90", "p99")
    rows = whole_table("load", *figures, right=figures, box=None, header_style="bold")
    for row in loads:
        times = [
            text
            for found in (row.first, row.gap)
            for text in (
                [f"{value:.1f}" for value in (found.p50, found.p90, found.p99)]
                if found
                else ["-"] * 3
            )
        ]
        rows.add_row(row.load, str(row.whole), shown(row.tokens), *times)
    return rows


def table(measured: Sequence[Measured]) -> Table:
    from transformer_serving.desk.bench.figures import shown

    figures = ("answers/s", "texts/s", "p50 ms", "p90", "p99", "p99.9", "not 200")
    rows = whole_table("load", *figures, right=figures, box=None, header_style="bold")
    for row in measured:
        found, latency = row.figures, row.figures.latency
        times = (
            [f"{value:.1f}" for value in (latency.p50, latency.p90, latency.p99, latency.p999)]
            if latency
            else ["-"] * 4
        )
        failed = found.requests - found.statuses.get("200", 0)
        rows.add_row(row.load, shown(found.goodput), shown(found.texts), *times, str(failed))
        for label, part in found.by_label.items():
            parts = [f"{value:.1f}" for value in (part.p50, part.p90, part.p99, part.p999)]
            rows.add_row(f"  {label}", "", "", *parts, "")
    return rows


def notes(measured: Sequence[Measured]) -> list[str]:
    """What a reader must know about the figures: other answers, and a generator at its limit."""
    said = []
    for row in measured:
        if not row.figures.requests:
            said.append(f"{row.load}: no request was due in its time; give more --seconds")
        others = {status: n for status, n in row.figures.statuses.items() if status != "200"}
        if others:
            counts = ", ".join(f"{status}: {count}" for status, count in others.items())
            said.append(f"{row.load}: answers other than 200: {counts}")
    busiest = max(
        (row.figures.generator_cpu for row in measured if row.figures.requests), default=0.0
    )
    return said + generator_notes(busiest)


def generator_notes(busiest: float) -> list[str]:
    """`busiest` is the most of one core that the generator used in any load."""
    said = [f"the generator used up to {busiest:.0%} of one core"]
    if busiest > 0.8:
        said.append("so it was itself the limit; the server can do more")
    return said


COMMANDS = (bench,)
