"""`backup` and `restore`: all that a stack stores, in one file.

Tested by tests/local/test_backup.py and tests/stack/test_commands.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from transformer_serving.desk.cli.options import json_option, state_option
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import interruptible


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@state_option
@json_option
def backup(file: Path, state: str | None, as_json: bool) -> None:
    """Write all that the stack stores, its keys too, to FILE; also while it serves."""
    from transformer_serving.desk.local.backup import backup as write_backup
    from transformer_serving.desk.local.record import state_directory

    with interruptible():
        done = write_backup(state_directory(state), file)
    if as_json:
        click.echo(json.dumps(done, indent=2))
        return
    click.echo(f"{file} holds {done['files']} files, {done['bytes'] / 1e6:.1f} MB, and the keys")


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@state_option
@json_option
def restore(file: Path, state: str | None, as_json: bool) -> None:
    """Put a backup in place of the data of a stack that is down; the old data is kept."""
    from transformer_serving.desk.command_line import command_line
    from transformer_serving.desk.local.backup import restore as put_back
    from transformer_serving.desk.local.record import state_directory
    from transformer_serving.desk.local.supervision import Supervisor

    folder = state_directory(state)
    if Supervisor(folder).is_up():
        raise Failure(f"the stack runs; stop it first: {command_line('down', folder)}", exit_code=2)
    with interruptible():
        done = put_back(folder, file)
    if as_json:
        click.echo(json.dumps(done, indent=2))
        return
    click.echo(f"{file} is restored; what was there is kept in {done['kept']}")
    click.echo(f"start it with {command_line('up', folder)}")


COMMANDS = (backup, restore)
