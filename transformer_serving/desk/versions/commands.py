"""What `transformer-serving versions` prints."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from transformer_serving.desk.versions.lock import Lock, read_lock
from transformer_serving.desk.versions.matrix import Release, read_matrix
from transformer_serving.desk.versions.move import use as move_pin

_CELLS = ("triton", "tensorrt", "cuda", "driver_min", "onnxruntime", "python", "tritonclient")
_WIDTH = 124
_MARKS = {"verified": "", "indirect": " ~", "unknown": " ?"}


def show(*, as_json: bool) -> None:
    """The matrix with its evidence, then the pins."""
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
    console.print(_pins(lock))


def _cell(row: Release, name: str) -> str:
    value = str(getattr(row, name))
    return "unknown" if value == "unknown" else value + _MARKS[row.evidence(name)]


def _pinned(row: Release, lock: Lock) -> str:
    pins = {"image": lock.image.release, "embedded": lock.embedded.release}
    return ", ".join(name for name, release in pins.items() if release == row.release)


def _pins(lock: Lock) -> Table:
    table = Table("pin", "is", "tested by", title="versions.toml")
    table.add_row("embedded", f"tritonserver {lock.embedded.triton}", lock.embedded.tested_by)
    table.add_row("image", lock.image.image, lock.image.tested_by)
    for name, pin in [*lock.packages.items(), *lock.base_images.items()]:
        table.add_row(name, pin.value, pin.tested_by)
    table.add_row("python", ", ".join(lock.python), lock.python_tested_by)
    return table


def use(release: str, *, as_json: bool) -> None:
    """Move the image pin and say what must be rebuilt."""
    move = move_pin(release)
    if as_json:
        click.echo(json.dumps(asdict(move), indent=2))
        return
    if move.before.release == move.after.release:
        click.echo(f"the image pin is {release} already")
        return
    click.echo(f"the image pin moved from {move.before.release} to {move.after.release}")
    for line in move.rebuild:
        click.echo(f"rebuild: {line}")
