"""`versions` and `versions use`: the Triton releases with their evidence, and the pins."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from transformer_serving.desk.cli.options import json_option

if TYPE_CHECKING:
    from rich.table import Table

    from transformer_serving.desk.versions.lock import Lock
    from transformer_serving.desk.versions.matrix import Release

_CELLS = ("triton", "tensorrt", "cuda", "driver_min", "onnxruntime", "python", "tritonclient")
_WIDTH = 124
_MARKS = {"verified": "", "indirect": " ~", "unknown": " ?"}


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def versions(context: click.Context, as_json: bool) -> None:
    """Show the Triton releases with their evidence, and what the kit is pinned to."""
    context.obj = as_json
    if context.invoked_subcommand is None:
        _show(as_json=as_json)


def _show(*, as_json: bool) -> None:
    """The matrix with its evidence, then the pins."""
    from rich.console import Console
    from rich.table import Table

    from transformer_serving.desk.versions.lock import read_lock
    from transformer_serving.desk.versions.matrix import ENDED_BY_CHUNKS_BEFORE, read_matrix

    lock, matrix = read_lock(), read_matrix()
    if as_json:
        rows = [row.as_json() for row in matrix]
        click.echo(json.dumps({"lock": lock.as_json(), "matrix": rows}, indent=2))
        return
    # A row of the matrix is one line, also where it is piped: eighty columns would break it.
    console = Console(width=max(Console().width, _WIDTH))
    table = Table("release", *_CELLS, "pinned", title="Triton releases", box=None)
    for row in matrix:
        table.add_row(row.release, *(_cell(row, name) for name in _CELLS), _pinned(row, lock))
    console.print(table)
    console.print("~ as in another NVIDIA image of that month   ? without evidence")
    console.print(
        f"A Triton before {ENDED_BY_CHUNKS_BEFORE} is ended by one request for inference: only who "
        "is trusted may reach its ports (docs/security.md)"
    )
    console.print(_pins(lock))


def _cell(row: Release, name: str) -> str:
    value = str(getattr(row, name))
    return "unknown" if value == "unknown" else value + _MARKS[row.evidence(name)]


def _pinned(row: Release, lock: Lock) -> str:
    pins = {
        "image": lock.image.release,
        "vllm_image": lock.vllm_image.release,
        "embedded": lock.embedded.release,
    }
    return ", ".join(name for name, release in pins.items() if release == row.release)


def _pins(lock: Lock) -> Table:
    from transformer_serving.desk.cli.tables import whole_table

    table = whole_table("pin", "is", "tested by", title="versions.toml")
    table.add_row("embedded", f"tritonserver {lock.embedded.triton}", lock.embedded.tested_by)
    for name, image in (("image", lock.image), ("vllm_image", lock.vllm_image)):
        table.add_row(name, image.image, image.tested_by)
    for name, pin in [*lock.packages.items(), *lock.base_images.items()]:
        table.add_row(name, pin.value, pin.tested_by)
    table.add_row("python", ", ".join(lock.python), lock.python_tested_by)
    return table


@versions.command()
@click.argument("release")
@json_option
@click.pass_obj
def use(group_as_json: bool, release: str, as_json: bool) -> None:
    """Move the image pin to RELEASE, such as 25.06, and say what must be rebuilt."""
    from transformer_serving.desk.versions.move import use as move_pin

    move = move_pin(release)
    # 'versions --json use' asks for the same.
    if as_json or group_as_json:
        click.echo(json.dumps(asdict(move), indent=2))
        return
    if move.before.release == move.after.release:
        click.echo(f"the image pin is {release} already")
    else:
        click.echo(f"the image pin moved from {move.before.release} to {move.after.release}")
    for line in move.rebuild:
        click.echo(f"rebuild: {line}")


COMMANDS = (versions,)
