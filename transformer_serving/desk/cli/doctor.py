"""`doctor`: what is wrong here, why, and the fix.

Tested by tests/doctor/test_command.py.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from transformer_serving.contract.error_line import printable
from transformer_serving.desk.cli.options import json_option, key_option, state_option
from transformer_serving.desk.doctor.finding import FAILURE, OK, SKIPPED, WARNING

if TYPE_CHECKING:
    from rich.console import Console

    from transformer_serving.desk.doctor.finding import Named

_STYLES = {OK: "green", WARNING: "yellow", FAILURE: "bold red", SKIPPED: "dim"}


@click.command()
@click.option("--env-file", type=click.Path(path_type=Path), metavar="FILE",
              help="Look at the ClearML server and Triton that this file names.")  # fmt: skip
@click.option("--bundle", type=click.Path(path_type=Path), metavar="PATH",
              help="Also check this bundle, or say what this .plan, .onnx or .xml is.")  # fmt: skip
@click.option("--endpoint", metavar="NAME", help="Of the endpoints only this one.")
@click.option("--log", type=click.Path(path_type=Path), metavar="FILE",
              help="Explain the known errors in this log of Triton.")  # fmt: skip
@key_option
@state_option
@json_option
@click.pass_context
def doctor(context: click.Context, env_file: Path | None, bundle: Path | None,
           endpoint: str | None, log: Path | None, key: str | None, state: str | None,
           as_json: bool) -> None:  # fmt: skip
    """Say what is wrong here, why, and the fix; exit code 1 when a check failed."""
    from rich.console import Console

    from transformer_serving.desk.doctor.subject import subject_of
    from transformer_serving.desk.doctor.table import examine
    from transformer_serving.desk.local.record import state_directory

    subject = subject_of(
        state_directory(state),
        is_state_named=context.get_parameter_source("state") is ParameterSource.COMMANDLINE,
        env_file=env_file,
        bundle=bundle,
        endpoint=endpoint,
        log=log,
        key=key,
    )
    found = []
    console = Console()
    for named in examine(subject):
        found.append(named)
        if not as_json:
            _show(console, named)
    counts = Counter(named.finding.status for named in found)
    if as_json:
        rows = [named.as_json() for named in found]
        click.echo(json.dumps({"healthy": not counts[FAILURE], "findings": rows}, indent=2))
    else:
        words = (f"{counts[status]} {status}" for status in (OK, WARNING, FAILURE, SKIPPED))
        console.print(", ".join(words))
    if counts[FAILURE]:
        sys.exit(1)


def _show(console: Console, named: Named) -> None:
    finding = named.finding
    # Names of others and engines' words are in them.
    why, fix = printable(finding.why), printable(finding.fix)
    style = _STYLES[finding.status]
    console.print(f"{finding.status:8}", style=style, end="")
    console.print(f"{named.check}: {why}", soft_wrap=True, highlight=False, markup=False)
    if fix:
        console.print(f"        fix: {fix}", soft_wrap=True, highlight=False, markup=False)


COMMANDS = (doctor,)
