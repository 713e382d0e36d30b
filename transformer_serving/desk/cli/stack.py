"""`up` and `down`: the embedded stack on this machine.

Tables for people on stderr's console, JSON on stdout.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transformer_serving.desk.cli.demo import demo_bundles, deploy_demo, show_requests
from transformer_serving.desk.cli.options import (
    json_option,
    key_option,
    key_was_typed,
    state_option,
)
from transformer_serving.desk.http import key_header

if TYPE_CHECKING:
    from rich.console import Console

    from transformer_serving.desk.local.stack import Stack


@click.command()
@state_option
@click.option("--port-base", type=click.IntRange(1024, 65530), metavar="N",
              help="First of six ports in a row: inference, control plane, Triton's metrics, "
              "controller's metrics, and of --monitoring Prometheus and Alertmanager.  "
              "[default: 8080, 8008, 8002, 8003, 8004, 8005, or as before]")  # fmt: skip
@click.option("--open-inference", type=click.IntRange(1024, 65535), metavar="PORT",
              help="Let every program of this machine call Triton's HTTP at 127.0.0.1:PORT, for "
              "inference only. One that is not trusted can end this Triton by a request. Without "
              "it Triton has no port.")  # fmt: skip
@click.option("--demo", is_flag=False, flag_value="texts", metavar="[NAME]",
              type=click.Choice(["texts", "generation"]),
              help="Also build and deploy demo models: texts, which plain --demo means, is a "
              "classifier and an embedder; generation a small language model that recites pages of "
              "this project.")  # fmt: skip
@click.option("--monitoring", is_flag=True,
              help="Also run Prometheus with the alerts of this project and, where it is "
              "installed, Alertmanager; on this machine alone, until `down`.")  # fmt: skip
@key_option
@json_option
def up(
    state: str | None,
    port_base: int | None,
    open_inference: int | None,
    demo: str | None,
    monitoring: bool,
    key: str | None,
    as_json: bool,
) -> None:
    """Start the whole stack on this machine and wait until every part answers."""
    from rich.text import Text

    from transformer_serving.desk.cli.progress import Phases, plain_console
    from transformer_serving.desk.command_line import command_line
    from transformer_serving.desk.local import stack, wanted
    from transformer_serving.desk.local.record import Ports, state_directory

    folder = state_directory(state)
    phases = Phases(plain_console(stderr=as_json))
    ports = None if port_base is None else Ports.from_base(port_base)
    typed = _typed(demo, open_inference, monitoring=monitoring, key=key)
    if demo:
        # What is refused is refused before anything is built.
        key_header(key)
        wanted.check(folder, ports, open_inference=open_inference, watched=monitoring, typed=typed)
    bundles = demo_bundles(demo, phases) if demo else []
    settings = {name: value for bundle in bundles for name, value in bundle.settings.items()}
    with _what_goes_on_told(folder, typed):
        with phases.phase("start the stack"):
            running = stack.start(
                folder, ports, phases.report, open_inference=open_inference, watched=monitoring,
                settings=settings, typed=typed,
            )  # fmt: skip
        _show_unheard(phases.console, running)
        deployed = deploy_demo(running, bundles, phases, key) if bundles else []
    if as_json:
        rows = [asdict(done) for done, _ in deployed]
        times = dict(phases.times)
        values = {**stack.status(folder, running.record), "deployed": rows, "seconds": times}
        click.echo(json.dumps(values, indent=2))
        return
    phases.console.print(phases.table())
    if open_inference is not None:
        phases.console.print(
            f"Triton's inference is open at {running.record.triton.http} to every program of this "
            "machine; its control is not",
            soft_wrap=True,
        )
    if monitoring:
        _show_monitoring(phases.console, running)
    show_requests(phases.console, folder, deployed, key)
    look = Text.assemble("see it with ", (command_line("status", folder), "bold"))
    phases.console.print(look, soft_wrap=True)


@contextmanager
def _what_goes_on_told(state: Path, typed: str) -> Iterator[None]:
    """After Ctrl-C, of what keeps its ports and its memory although this command has ended."""
    from transformer_serving.desk.command_line import command_line
    from transformer_serving.desk.deploy.time_limit import Interrupted
    from transformer_serving.desk.local.leftovers import has_leftovers

    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        if has_leftovers(state):
            click.echo(
                "what was started of the stack goes on; end it: "
                f"{command_line('down', state)}; or start the rest: {command_line(typed, state)}",
                err=True,
            )
        raise


def _typed(
    demo: str | None, open_inference: int | None, *, monitoring: bool, key: str | None
) -> str:
    """The command as it is typed again, with another --port-base or --state; a key is not shown."""
    words = ["up"]
    words += ["--demo", demo] if demo else []
    words += ["--open-inference", str(open_inference)] if open_inference else []
    words += ["--monitoring"] if monitoring else []
    words += ["--key", "KEY"] if key_was_typed(key) else []
    return " ".join(words)


def _show_unheard(console: Console, running: Stack) -> None:
    from transformer_serving.desk.command_line import command_line

    if running.unheard:
        console.print(
            "a stack that runs keeps the settings that it was started with; not taken over: "
            f"{', '.join(running.unheard)}; stop it first: "
            f"{command_line('down', running.state)}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip


def _show_monitoring(console: Console, running: Stack) -> None:
    from transformer_serving.desk.local import monitoring

    address = monitoring.alerts_page(running.record)
    console.print(f"figures and alerts are at {address}", soft_wrap=True)
    if "alertmanager" not in running.record.monitoring:
        console.print(
            "nobody is told of alerts: no Alertmanager is installed here; on Debian and Ubuntu: "
            "apt-get install prometheus-alertmanager",
            soft_wrap=True,
        )


@click.command()
@state_option
@json_option
def down(state: str | None, as_json: bool) -> None:
    """Stop the stack, also after a crash of any part; data and endpoints stay."""
    from transformer_serving.desk.cli.progress import plain_console, step_line
    from transformer_serving.desk.local import stack
    from transformer_serving.desk.local.record import state_directory
    from transformer_serving.desk.tune.killed_run import end_what_is_left

    folder = state_directory(state)
    console = plain_console(stderr=as_json)
    was_there = stack.is_there(folder)
    with console.status("stopping") as shown:
        tuned = end_what_is_left(folder)
        swept = stack.stop(folder, step_line(shown) if was_there else lambda _: None)
    if tuned:
        err = plain_console(stderr=True)
        err.print("ended the stack that a killed tune had left", soft_wrap=True)
    if as_json:
        values = {"state": str(folder), "running": False, "swept": swept}
        click.echo(json.dumps(values, indent=2))
        return
    if not was_there:
        console.print(f"no stack in {folder}", soft_wrap=True, highlight=False)
        return
    note = f"; ended {swept} processes that a crash had left" if swept else ""
    console.print(f"the stack is down{note}; its data stays in {folder}", soft_wrap=True)


COMMANDS = (up, down)
