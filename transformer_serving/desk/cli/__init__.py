"""The command line `transformer-serving`, one file a command; heavy imports stay inside them.

Tested by tests/stack/test_commands.py.
"""

from __future__ import annotations

from typing import Any

import click

from transformer_serving.desk.cli import (
    backup,
    bench,
    bundle,
    convert,
    deploy,
    doctor,
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
from transformer_serving.desk.failure import Failure

_FILES = (
    stack, status, logs, deploy, rollout, backup, convert, show, repository, bundle, signing, keys,
    bench, tune, versions, doctor,
)  # fmt: skip


class Commands(click.Group):
    """Prints a Failure as one line and leaves with its exit code."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except Failure as failure:
            click.echo(f"error: {failure}", err=True)
            context.exit(failure.exit_code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="transformer-serving")
def main() -> None:
    """Serve Hugging Face transformers on ClearML Serving and NVIDIA Triton."""


for file in _FILES:
    for command in file.COMMANDS:
        main.add_command(command)
