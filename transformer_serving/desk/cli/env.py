"""`env`: the variables of this machine's stack, or of a ClearML server of compose, for a shell.

Tested by tests/local/test_record.py.
"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path

import click

from transformer_serving.desk.cli.options import json_option, state_option
from transformer_serving.desk.failure import Failure


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


COMMANDS = (env,)
