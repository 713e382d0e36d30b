"""The command line `transformer-serving`, one file a command; heavy imports stay inside them.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

import errno
from typing import Any, NoReturn

import click

from transformer_serving.desk.cli import (
    backup,
    bench,
    bundle,
    convert,
    deploy,
    doctor,
    env,
    keys,
    logs,
    repository,
    rollout,
    show,
    signing,
    stack,
    status,
    tune,
    versions,
)
from transformer_serving.desk.failure import Failure, failure_of

_FILES = (
    stack, env, status, logs, deploy, rollout, backup, convert, show, repository, bundle, signing,
    keys, bench, tune, versions, doctor,
)  # fmt: skip


class Commands(click.Group):
    """Prints a Failure, and what the machine did not do, as one line and leaves with its exit
    code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Failure as failure:
            _leave(context, failure)
        except OSError as error:
            # Whoever read the output has left: click ends then without a word.
            if error.errno == errno.EPIPE:
                raise
            _leave(context, failure_of(error))


def _leave(context: click.Context, failure: Failure) -> NoReturn:
    click.echo(f"error: {failure}", err=True)
    context.exit(failure.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="transformer-serving")
def main() -> None:
    """Serve Hugging Face transformers on ClearML Serving and NVIDIA Triton."""


for file in _FILES:
    for command in file.COMMANDS:
        main.add_command(command)
