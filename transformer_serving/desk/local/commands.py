"""What the stack's commands print: tables for people on stderr's console, JSON on stdout."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from transformer_serving.bundle_folder import open_bundle
from transformer_serving.deploy import (
    TARGET_VARIABLES,
    Deployed,
    Target,
    deploy as deploy_bundle,
    remove as remove_endpoint,
    target_of,
)
from transformer_serving.desk.local import stack
from transformer_serving.desk.local.parts import BY_NAME
from transformer_serving.desk.local.record import (
    STATE_VARIABLE,
    Ports,
    clearml_environment,
    load_record,
    require_record,
    state_directory,
)
from transformer_serving.desk.local.supervision import Supervisor
from transformer_serving.failure import Failure
from transformer_serving.golden import ask
from transformer_serving.progress import Phases
from transformer_serving.rollback import rollback as rollback_endpoint
from transformer_serving.time_limit import since_start

_GOLDEN_S = 120.0
_WATCH_S = 1.0


def folder(given: str | None) -> Path:
    return state_directory(given)


def _print(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def up(
    state: Path,
    port_base: int | None,
    *,
    demo: bool,
    as_json: bool,
    open_inference: int | None = None,
) -> None:
    phases = Phases(Console(stderr=as_json))
    ports = None if port_base is None else Ports.from_base(port_base)
    bundles = _demo_bundles(phases) if demo else []
    with phases.phase("start the stack"):
        running = stack.start(state, ports, phases.report, open_inference=open_inference)
    deployed = []
    for bundle in bundles:
        with phases.phase(f"deploy {bundle.endpoint}"):
            done = deploy_bundle(
                running.target(), open_bundle(bundle.path), bundle.endpoint,
                timeout_s=_GOLDEN_S, report=phases.report,
            )  # fmt: skip
        deployed.append((done, bundle.request))
    if as_json:
        rows = [asdict(done) for done, _ in deployed]
        times = dict(phases.times)
        _print({**stack.status(state, running.record), "deployed": rows, "seconds": times})
        return
    phases.console.print(phases.table())
    if open_inference is not None:
        phases.console.print(
            f"Triton's inference is open at {running.record.triton.http} to every program of this "
            "machine; its control is not",
            soft_wrap=True,
        )
    for done, request in deployed:
        _show_curl(phases.console, done, request)
    phases.console.print("see it with [bold]transformer-serving status[/]")


def _demo_bundles(phases: Phases) -> list[Any]:
    with phases.phase("build the demo models"):
        from transformer_serving.desk.demo import build_demo_models

        return build_demo_models(Path("build/demo"), precision=None, report=phases.report)


def _show_curl(console: Console, done: Deployed, request: dict[str, Any]) -> None:
    """The curl line as one can paste it, and what it answers right now."""
    body = shlex.quote(json.dumps(request))
    line = f'curl -X POST {done.url} -H "Content-Type: application/json" -d {body}'
    answer = json.dumps(ask(done.url, request).body)
    console.print()
    console.print(line, style="bold", soft_wrap=True, highlight=False, markup=False)
    shown = answer if len(answer) <= 200 else f"{answer[:160]} ... ({len(answer)} characters)"
    console.print(shown, soft_wrap=True, highlight=False, markup=False)


def down(state: Path, *, as_json: bool) -> None:
    console = Console(stderr=as_json)
    with console.status("stopping"):
        swept = stack.stop(state, lambda _: None)
    if as_json:
        _print({"state": str(state), "running": False, "swept": swept})
        return
    note = f"; ended {swept} processes that a crash had left" if swept else ""
    console.print(f"the stack is down{note}; its data stays in {state}", soft_wrap=True)


def status(state: Path, *, as_json: bool) -> bool:
    """Print the status; whether everything is well."""
    values = stack.status(state, require_record(state))
    if as_json:
        _print(values)
    else:
        Console().print(_status_tables(state, values))
    return _well(values)


def watch(state: Path, *, as_json: bool) -> None:
    """Show the status until Ctrl-C: in place on a terminal, else again whenever it changed."""
    record = require_record(state)
    console = Console()
    shown: Any = None
    with (
        contextlib.suppress(KeyboardInterrupt),
        Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live,
    ):
        while True:
            values = stack.status(state, record)
            told = _without_clock(values)
            if as_json and told != shown:
                click.echo(json.dumps(values))
            elif live is not None and not as_json:
                live.update(_status_tables(state, values), refresh=True)
            elif told != shown:
                console.print(_status_tables(state, values))
            shown = told
            time.sleep(_WATCH_S)


def _without_clock(values: dict[str, Any]) -> dict[str, Any]:
    parts = [{**part, "uptime_s": None} for part in values["parts"]]
    return {**values, "parts": parts}


def _well(values: dict[str, Any]) -> bool:
    return bool(values["running"]) and all(part["health"] == "ok" for part in values["parts"])


def _status_tables(state: Path, values: dict[str, Any]) -> Group:
    parts = Table("part", "pid", "port", "health", "version", title=f"stack in {state}")
    for part in values["parts"]:
        socket = "socket" if part["port"] is None and part["address"] else part["port"]
        row = (part["name"], part["pid"], socket, part["health"], part["version"])
        parts.add_row(*map(_cell, row))
    endpoints = Table("endpoint", "bundle version", "engine", "proof", "ready", "why not")
    for row in values["endpoints"]:
        version = _cell(row.get("bundle_version")) if row.get("verified") else "unverified"
        ready = "yes" if row.get("ready") else "no"
        cells = (row.get("endpoint"), version, row.get("backend"), row.get("proof"))
        endpoints.add_row(*map(_cell, cells), ready, _cell(row["reason"]))
    opened = [
        Text(f"the Triton at {row['address']} is open: {row['open']}", style="bold yellow")
        for row in values["open_tritons"]
    ]
    return Group(parts, endpoints, *opened)


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def logs(state: Path, part: str | None, *, follow: bool, lines: int) -> None:
    require_record(state)
    names = [*BY_NAME, "supervisor"]
    if part is not None and part not in names:
        raise Failure(f"there is no part '{part}'; the parts are {', '.join(names)}", exit_code=2)
    files = [state / "logs" / f"{name}.log" for name in ([part] if part else names)]
    present = [str(file) for file in files if file.exists()]
    if not present:
        raise Failure(f"no logs in {state / 'logs'} yet")
    command = ["tail", "-n", str(lines), *(["-F"] if follow else []), *present]
    try:
        subprocess.run(command, check=False)
    except KeyboardInterrupt:
        return


def env(state: Path, *, as_json: bool) -> None:
    values = clearml_environment(require_record(state))
    if as_json:
        _print(values)
        return
    for name, value in values.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def _target(state: Path) -> Target:
    """The embedded stack of that folder; without one, the server that CLEARML_* names.

    Raises Failure for a stack that is not running, and (exit code 2) where there is neither.
    """
    record = load_record(state)
    if record is None:
        return _named_target(state)
    supervisor = Supervisor(state)
    if not supervisor.is_up() or record.serving_id is None:
        raise Failure(
            f"the stack in {state} is not running; start it with 'transformer-serving up'"
        )
    return stack.Stack(state, record, supervisor).target()


def _named_target(state: Path) -> Target:
    target = target_of(os.environ, state)
    if target is None:
        missing = ", ".join(name for name in TARGET_VARIABLES if not os.environ.get(name))
        raise Failure(
            f"no stack in {state}; start one with 'transformer-serving up', or name its folder "
            f"with --state or {STATE_VARIABLE}; for a ClearML server of your own set {missing}",
            exit_code=2,
        )
    return target


def deploy(
    state: Path, bundle: Path, endpoint: str, *, timeout_s: float, keep: int, as_json: bool
) -> None:
    opened = open_bundle(bundle)  # what is no bundle is refused before the stack is asked for
    target = _target(state)
    console = Console(stderr=as_json)
    with console.status("deploying") as line:
        done = deploy_bundle(
            target, opened, endpoint, timeout_s=timeout_s, keep=keep, spent_s=since_start(),
            report=lambda step: line.update(step),
        )  # fmt: skip
    if as_json:
        _print(asdict(done))
        return
    what = "serves" if done.changed else "already served"
    console.print(f"{endpoint} {what} bundle {done.bundle_version} at {done.url}", soft_wrap=True)


def rollback(state: Path, endpoint: str, *, timeout_s: float, as_json: bool) -> None:
    target = _target(state)
    console = Console(stderr=as_json)
    with console.status("rolling back") as line:
        done = rollback_endpoint(
            target, endpoint, timeout_s=timeout_s, spent_s=since_start(),
            report=lambda step: line.update(step),
        )  # fmt: skip
    if as_json:
        _print(asdict(done))
        return
    instead = f" instead of {done.withdrawn_version}" if done.withdrawn_version else ""
    console.print(f"{endpoint} serves bundle {done.bundle_version}{instead}", soft_wrap=True)


def remove(state: Path, endpoint: str, *, forget: bool, as_json: bool) -> None:
    done = remove_endpoint(_target(state), endpoint, forget=forget)
    if as_json:
        _print(asdict(done))
        return
    if done.removed:
        click.echo(f"{endpoint} is removed")
    if forget:
        click.echo(f"{done.forgotten} of its bundles are forgotten")


def backup(state: Path, file: Path, *, as_json: bool) -> None:
    from transformer_serving.desk.local.backup import backup as write_backup

    done = write_backup(state, file)
    if as_json:
        _print(done)
        return
    click.echo(f"{file} holds {done['files']} files, {done['bytes'] / 1e6:.1f} MB, and the keys")


def restore(state: Path, file: Path, *, as_json: bool) -> None:
    from transformer_serving.desk.local.backup import restore as put_back

    if Supervisor(state).is_up():
        raise Failure("the stack runs; stop it first: transformer-serving down", exit_code=2)
    done = put_back(state, file)
    if as_json:
        _print(done)
        return
    click.echo(f"{file} is restored; what was there is kept in {done['kept']}")
    click.echo("start it with transformer-serving up")
