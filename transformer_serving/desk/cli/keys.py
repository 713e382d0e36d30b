"""`keys add`, `keys list` and `keys remove`: who may ask the gateway what.

Tested by tests/cli/test_keys.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from transformer_serving.desk.cli.options import json_option
from transformer_serving.gateway.access import KEYS_FILE

_FIGURES = "/metrics, /tei/NAME/metrics"
_file_option = click.option(
    "--file",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=KEYS_FILE.name,
    show_envvar=True,
    required=True,
    metavar="FILE",
    help="The key file, the one that the gateway reads.",
)


@click.group()
def keys() -> None:
    """The keys of callers that the gateway lets in."""


@keys.command()
@click.argument("name")
@click.option("--endpoint", "endpoints", multiple=True, metavar="NAME[/VERSION]",
              help="Lets in to this endpoint only; may be repeated.  [default: all]")  # fmt: skip
@click.option("--metrics", is_flag=True,
              help="Lets in to figures, /metrics and each endpoint's /tei/NAME/metrics, and to "
                   "nothing else.")  # fmt: skip
@_file_option
def add(name: str, endpoints: tuple[str, ...], metrics: bool, file: Path) -> None:
    """Make a key and print it, this once; FILE keeps its hash under NAME."""
    from transformer_serving.desk.keys import add_key, take_back

    key = add_key(file, name, endpoints, metrics=metrics)
    allowed = _FIGURES if metrics else ", ".join(endpoints) or "every endpoint"
    try:
        click.echo(key)
    except OSError as error:
        raise take_back(file, name, error) from error
    click.echo(f"'{name}' may ask {allowed}; its key is shown this once", err=True)


@keys.command("list")
@_file_option
@json_option
def list_(file: Path, as_json: bool) -> None:
    """Show the names, what each may ask, and since when."""
    from transformer_serving.desk.keys import read

    found = read(file)
    if as_json:
        click.echo(json.dumps([asdict(key) for key in found], indent=2))
        return

    from transformer_serving.desk.cli.tables import table_console, whole_table

    table = whole_table("key", "may ask", "since", box=None, header_style="bold")
    for key in found:
        allowed = _FIGURES if key.metrics else ", ".join(key.endpoints or ("every endpoint",))
        table.add_row(key.name, allowed, key.created)
    table_console().print(table)


@keys.command()
@click.argument("name")
@_file_option
def remove(name: str, file: Path) -> None:
    """Take the key of NAME out of FILE; a running gateway refuses it a second later."""
    from transformer_serving.desk.keys import remove_key

    remove_key(file, name)
    click.echo(f"'{name}' is removed from {file}")


COMMANDS = (keys,)
