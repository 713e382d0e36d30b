"""What `transformer-serving doctor` prints."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import click
from rich.console import Console

from transformer_serving.desk.doctor.finding import FAILURE, OK, SKIPPED, WARNING, Named
from transformer_serving.desk.doctor.subject import subject_of
from transformer_serving.desk.doctor.table import examine

_STYLES = {OK: "green", WARNING: "yellow", FAILURE: "bold red", SKIPPED: "dim"}


def doctor(
    state: Path,
    *,
    env_file: Path | None,
    bundle: Path | None,
    endpoint: str | None,
    log: Path | None,
    as_json: bool,
) -> bool:
    """Make the checks and print what they say; whether none failed."""
    subject = subject_of(state, env_file=env_file, bundle=bundle, endpoint=endpoint, log=log)
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
    return not counts[FAILURE]


def _show(console: Console, named: Named) -> None:
    finding = named.finding
    style = _STYLES[finding.status]
    console.print(f"{finding.status:8}", style=style, end="")
    console.print(f"{named.check}: {finding.why}", soft_wrap=True, highlight=False, markup=False)
    if finding.fix:
        console.print(f"        fix: {finding.fix}", soft_wrap=True, highlight=False, markup=False)
