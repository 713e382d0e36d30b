"""`status`: the parts of a stack and its endpoints, once or again and again.

Tested by tests/stack/test_commands.py and tests/stack/test_watch.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from transformer_serving.contract.error_line import printable
from transformer_serving.desk.cli.options import json_option, state_option
from transformer_serving.desk.cli.tables import table_console, whole_table
from transformer_serving.desk.number import Number

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text


@click.command()
@click.option("--watch", is_flag=True,
              help="Go on until Ctrl-C: of each endpoint requests a second, p50 and p99, refusals "
              "and errors, of generated text tokens a second and time to the first one, what waits "
              "against its limit, and what is not well. Where the output is no terminal, lines; "
              "with --json one line a look, with the figures beside what --json has. "
              "TRANSFORMER_SERVING_METRICS_KEY is the key for a gateway with keys.")  # fmt: skip
@click.option("--interval", "interval_s", type=Number(0.2, 3600), default=2.0,
              show_default=True, metavar="SECONDS",
              help="From one look of --watch to the next.")  # fmt: skip
@state_option
@json_option
def status(watch: bool, interval_s: float, state: str | None, as_json: bool) -> None:
    """Show each part (pid, port, health, version) and each endpoint (bundle, engine, ready)."""
    from transformer_serving.desk.local import stack
    from transformer_serving.desk.local.leftovers import absence
    from transformer_serving.desk.local.record import require_record, state_directory

    folder = state_directory(state)
    if watch:
        from transformer_serving.desk.watch.watching import watch as go_on_looking

        go_on_looking(folder, interval_s, as_json=as_json)
        return
    values = stack.status(folder, require_record(folder))
    if as_json:
        click.echo(json.dumps(values, indent=2))
    else:
        console = table_console()
        console.print(_status_tables(folder, values))
        if not values["running"]:
            # Broken in two, its first half would be pasted, and start another stack.
            down = absence(folder, left_behind=values["left_behind"])
            console.print(_text(str(down)), soft_wrap=True)
    if not _well(values):
        sys.exit(1)


def _well(values: dict[str, Any]) -> bool:
    return bool(values["running"]) and all(part["health"] == "ok" for part in values["parts"])


def _status_tables(state: Path, values: dict[str, Any]) -> Group:
    from rich.console import Group

    title = _text(f"stack in {state}")
    parts = whole_table("part", "pid", "port", "health", "version", title=title)
    for part in values["parts"]:
        socket = "socket" if part["port"] is None and part["address"] else part["port"]
        row = (part["name"], part["pid"], socket, part["health"], part["version"])
        parts.add_row(*map(_cell, row))
    endpoints = whole_table("endpoint", "bundle version", "engine", "proof", "ready", "why not")
    for row in values["endpoints"]:
        version = row.get("bundle_version") if row.get("verified") else "unverified"
        ready = "yes" if row.get("ready") else "no"
        shown = (row.get("endpoint"), version, row.get("backend"), row.get("proof"), ready)
        endpoints.add_row(*map(_cell, (*shown, row["reason"])))
    opened = [
        _text(f"the Triton at {row['address']} is open: {row['open']}", style="bold yellow")
        for row in values["open_tritons"]
    ]
    watched = [
        _text(f"figures and alerts: http://{part['address']}/alerts")
        for part in values["parts"]
        if part["name"] == "prometheus"
    ]
    rollouts = [
        _text(f"rollout of {row['endpoint']} to bundle {row['bundle_version']}: {row['words']}")
        for row in values["rollouts"]
    ]
    routes = [_text(f"canary route {row['endpoint']}: {_arms(row)}") for row in values["routes"]]
    unserved = [
        _text(
            f"serving service '{row['name']}' ({row['id']}) is not served; its endpoints answer "
            f"nobody: {', '.join(row['endpoints'])}",
            style="bold yellow",
        )
        for row in values["unserved"]
    ]
    return Group(parts, endpoints, *routes, *unserved, *rollouts, *watched, *opened)


def _arms(route: dict[str, Any]) -> str:
    """Each endpoint with its weight."""
    arms = [
        f"{arm['endpoint']} {arm['weight']:g}{'' if arm['is_there'] else ' (not there)'}"
        for arm in route["arms"]
    ]
    if route["leads_somewhere"]:
        return ", ".join(arms)
    return "leads nowhere" + (f": {', '.join(arms)}" if arms else "")


def _cell(value: Any) -> Text:
    return _text("-" if value is None else str(value))


def _text(said: str, style: str = "") -> Text:
    """As it stands: names of others, and what an engine says, may hold rich's own signs, and what
    a terminal would obey."""
    from rich.text import Text

    return Text(printable(said), style)


COMMANDS = (status,)
