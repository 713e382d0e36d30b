"""`up`, `down` and `env`: the embedded stack on this machine.

Tables for people on stderr's console, JSON on stdout.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transformer_serving.desk.cli.options import json_option, key_option, state_option
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import KEY_HEADER, KEY_VARIABLE, key_header

if TYPE_CHECKING:
    from rich.console import Console

    from transformer_serving.desk.cli.progress import Phases
    from transformer_serving.desk.demo import DemoBundle
    from transformer_serving.desk.deploy.endpoint import Deployed
    from transformer_serving.desk.deploy.target import DeployTarget
    from transformer_serving.desk.local.stack import Stack

_GOLDEN_S = 120.0


@click.command()
@state_option
@click.option("--port-base", type=click.IntRange(1024, 65530), metavar="N",
              help="First of six ports in a row: inference, control plane, Triton's metrics, "
              "controller's metrics, and of --monitoring Prometheus and Alertmanager.  "
              "[default: 8080, 8008, 8002, 8003, 8004, 8005, or as before]")  # fmt: skip
@click.option("--open-inference", type=click.IntRange(1024, 65535), metavar="PORT",
              help="Let every program of this machine call Triton's HTTP at 127.0.0.1:PORT, for "
              "inference only. Without it Triton has no port.")  # fmt: skip
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
    bundles = _demo_bundles(demo, phases) if demo else []
    settings = {name: value for bundle in bundles for name, value in bundle.settings.items()}
    with _what_goes_on_told(folder, typed):
        with phases.phase("start the stack"):
            running = stack.start(
                folder, ports, phases.report, open_inference=open_inference, watched=monitoring,
                settings=settings, typed=typed,
            )  # fmt: skip
        _show_unheard(phases.console, running)
        deployed = _deploy_demo(running, bundles, phases, key) if bundles else []
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
    _show_requests(phases.console, folder, deployed, key)
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
    words += ["--key", "KEY"] if _is_typed(key) else []
    return " ".join(words)


def _is_typed(key: str | None) -> bool:
    """Whether it was given by --key, and no variable has it."""
    return bool(key) and os.environ.get(KEY_VARIABLE) != key


def _show_unheard(console: Console, running: Stack) -> None:
    from transformer_serving.desk.command_line import command_line

    if running.unheard:
        console.print(
            "a stack that runs keeps the settings that it was started with; not taken over: "
            f"{', '.join(running.unheard)}; stop it first: "
            f"{command_line('down', running.state)}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip


def _demo_bundles(demo: str, phases: Phases) -> list[DemoBundle]:
    with phases.phase("build the demo models"):
        from transformer_serving.desk.demo import build_demo_models, build_generation_demo

        if demo == "generation":
            folder = Path("build/demo-generation")
            return build_generation_demo(folder, report=phases.report)
        return build_demo_models(Path("build/demo"), precision=None, report=phases.report)


def _deploy_demo(
    running: Stack, bundles: list[DemoBundle], phases: Phases, key: str | None
) -> list[tuple[Deployed, DemoBundle]]:
    """All but what would take the place of the user's own."""
    from transformer_serving.desk.bundle.folder import open_bundle
    from transformer_serving.desk.demo.left_alone import served_instead
    from transformer_serving.desk.deploy.endpoint import deploy_together

    opened = {bundle.endpoint: open_bundle(bundle.path) for bundle in bundles}
    target = replace(running.target(), key=key)
    with phases.phase(f"deploy {' and '.join(opened)}"):
        phases.report("asking what is served already")
        standing = served_instead(target, opened)
        taken = [bundle for bundle in bundles if bundle.endpoint not in standing]
        asked = {bundle.endpoint: opened[bundle.endpoint] for bundle in taken}
        done = deploy_together(
            target, asked, timeout_s=_GOLDEN_S * len(asked), report=phases.report
        ) if asked else []  # fmt: skip
    for bundle in bundles:
        if bundle.endpoint in standing:
            _show_left_alone(phases.console, target, bundle, standing[bundle.endpoint])
    return list(zip(done, taken, strict=True))


def _show_left_alone(
    console: Console, target: DeployTarget, bundle: DemoBundle, standing: str
) -> None:
    name = bundle.endpoint
    console.print(
        f"{name} {standing}, and is left as it is; the demo under another name: "
        f"{target.command(f'deploy {bundle.path} --endpoint NAME')}; or in its place, after: "
        f"{target.command(f'remove {name}')}",
        soft_wrap=True, highlight=False, markup=False,
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


def _show_requests(
    console: Console, state: Path, deployed: list[tuple[Deployed, DemoBundle]], key: str | None
) -> None:
    # A shell would put nothing, or another key, in the place of a key that was given by --key.
    if deployed and _is_typed(key):
        console.print()
        console.print(
            f"for these requests {KEY_VARIABLE} must hold the key: export {KEY_VARIABLE}=KEY",
            soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip
    for done, bundle in deployed:
        _show_curl(console, done, bundle, key)
        _show_generate(console, state, done, bundle, key)


def _show_generate(
    console: Console, state: Path, done: Deployed, bundle: DemoBundle, key: str | None
) -> None:
    """The curl line of the generation recipe, where this stack has its path for the demo."""
    from transformer_serving.desk.command_line import command_line
    from transformer_serving.desk.deploy.golden import ask
    from transformer_serving.gateway.settings import GENERATE, GENERATE_ENDPOINT

    wanted = bundle.settings.get(GENERATE_ENDPOINT.name)
    if wanted is None or os.environ.get(GENERATE_ENDPOINT.name, "") not in ("", wanted):
        return
    url = done.url.partition("/serve/")[0] + GENERATE
    reply = ask(url, _whole(bundle.request), headers=key_header(key))
    if reply.status == 200 and reply.version == done.bundle_version:
        line = _curl(url, _whole(bundle.request), key)
        console.print(line, style="bold", soft_wrap=True, highlight=False, markup=False)
    elif reply.status == 404:
        console.print(
            f"POST {GENERATE} asks no endpoint: the stack ran before, and keeps what it was "
            f"started with; after '{command_line('down', state)}' this command starts one that has "
            "it",
            soft_wrap=True, highlight=False,
        )  # fmt: skip


def _show_curl(console: Console, done: Deployed, bundle: DemoBundle, key: str | None) -> None:
    """The curl line as one can paste it, and what it answers right now; a key is not shown."""
    from transformer_serving.desk.deploy.golden import ask

    line = _curl(done.url, bundle.request, key)
    answer = json.dumps(ask(done.url, _whole(bundle.request), headers=key_header(key)).body)
    console.print()
    if bundle.about:
        console.print(bundle.about, soft_wrap=True, highlight=False)
    console.print(line, style="bold", soft_wrap=True, highlight=False, markup=False)
    shown = answer if len(answer) <= 200 else f"{answer[:160]} ... ({len(answer)} characters)"
    console.print(shown, soft_wrap=True, highlight=False, markup=False)


def _whole(request: dict[str, Any]) -> dict[str, Any]:
    """What comes as events is shown whole."""
    return {name: value for name, value in request.items() if name != "stream"}


def _curl(url: str, request: dict[str, Any], key: str | None) -> str:
    body = shlex.quote(json.dumps(request))
    # Without -N curl shows events when it has a page full of them.
    options = "-N -X" if request.get("stream") else "-X"
    headers = ["Content-Type: application/json"]
    if key:
        headers.append(f"{KEY_HEADER}: ${KEY_VARIABLE}")
    stated = " ".join(f'-H "{header}"' for header in headers)
    return f"curl {options} POST {url} {stated} -d {body}"


@click.command()
@state_option
@json_option
def down(state: str | None, as_json: bool) -> None:
    """Stop the stack, also after a crash of any part; data and endpoints stay."""
    from transformer_serving.desk.cli.progress import plain_console, step_line
    from transformer_serving.desk.local import stack
    from transformer_serving.desk.local.record import state_directory

    folder = state_directory(state)
    console = plain_console(stderr=as_json)
    was_there = stack.is_there(folder)
    with console.status("stopping") as shown:
        swept = stack.stop(folder, step_line(shown))
    if as_json:
        values = {"state": str(folder), "running": False, "swept": swept}
        click.echo(json.dumps(values, indent=2))
        return
    if not was_there:
        console.print(f"no stack in {folder}", soft_wrap=True, highlight=False)
        return
    note = f"; ended {swept} processes that a crash had left" if swept else ""
    console.print(f"the stack is down{note}; its data stays in {folder}", soft_wrap=True)


@click.command()
@click.option("--env-file", type=click.Path(path_type=Path), metavar="FILE",
              help="Of the ClearML server that this file of compose names, instead.")  # fmt: skip
@state_option
@json_option
def env(env_file: Path | None, state: str | None, as_json: bool) -> None:
    """Print the stack's CLEARML_* variables: eval "$(transformer-serving env)"."""
    from transformer_serving.desk.clearml_tools.variables import leading_elsewhere
    from transformer_serving.desk.compose.server import VARIABLES, server_variables
    from transformer_serving.desk.local.record import (
        clearml_environment,
        require_record,
        state_directory,
    )

    try:
        if env_file is None:
            values = clearml_environment(require_record(state_directory(state)))
        else:
            values = server_variables(env_file)
    except Failure:
        # `eval "$(...)"` is no failure, and what comes after it would reach the shell's own server.
        if not as_json:
            click.echo(f"unset {' '.join(VARIABLES)}\nfalse")
        raise
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    empty = [name for name in VARIABLES if env_file is not None and name not in values]
    for name in dict.fromkeys([*empty, *leading_elsewhere(os.environ, values)]):
        click.echo(f"unset {name}")
    for name, value in values.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    if env_file is not None:
        _say_what_is_missing(env_file, empty)


def _say_what_is_missing(env_file: Path, empty: list[str]) -> None:
    needed = ", ".join(name for name in empty if name != "CLEARML_WEB_HOST")
    if needed:
        click.echo(
            f"note: {env_file} has no {needed}: export what is needed of it after the eval, also "
            "the keys that compose/secrets.yaml gives to the containers",
            err=True,
        )


COMMANDS = (up, down, env)
