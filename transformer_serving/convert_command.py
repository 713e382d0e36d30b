"""What `transformer-serving convert` prints."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from transformer_serving.failure import Failure


def convert(model: str, output: Path, *, as_json: bool, **choices: Any) -> None:
    """Convert and say what came of it. Raises Failure where convert's packages are missing."""
    try:
        from transformer_serving.convert import ConvertRequest, convert as convert_model
    except ModuleNotFoundError as error:
        raise Failure(
            f"convert needs {error.name}; install it: pip install 'transformer-serving[convert]'",
            exit_code=2,
        ) from error
    console = Console(stderr=as_json)
    with console.status("convert") as status:

        def progress(step: str, detail: str) -> None:
            status.update(f"{step}: {detail}")
            if not console.is_terminal:
                console.print(f"{step}: {detail}", highlight=False, soft_wrap=True)

        done = convert_model(ConvertRequest(model, **choices), output, progress)
    manifest = done.bundle.manifest
    if as_json:
        values = {
            "bundle": str(output),
            "bundle_version": manifest.bundle_version,
            "task": manifest.task,
            "engine": manifest.engine,
            "precision": manifest.precision,
            "parity": asdict(done.parity),
        }
        click.echo(json.dumps(values, indent=2))
        return
    console.print(
        f"bundle {manifest.bundle_version} for {manifest.task} in {output} "
        f"({manifest.engine}, {manifest.precision}); largest difference from the reference "
        f"{done.parity.largest_difference:.2e}",
        soft_wrap=True,
    )
    console.print(f"serve it: transformer-serving deploy {output} --endpoint NAME", soft_wrap=True)
