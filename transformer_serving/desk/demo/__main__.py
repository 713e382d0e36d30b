"""python -m transformer_serving.desk.demo: build the demo bundles into a folder.

Tested by tests/demo/test_sentiment.py and tests/stack/test_demo_folder.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from transformer_serving.desk.demo import build_demo_models
from transformer_serving.desk.failure import Failure


@click.command(help="Build the two demo bundles, or find them built.")
@click.option(
    "--target", type=click.Path(path_type=Path), default=Path("build/demo"), show_default=True
)
@click.option(
    "--precision", type=click.Choice(["fp32", "bf16"]), default=None, help="Default: by the CPU."
)
def main(target: Path, precision: str | None) -> None:
    """Print one line a step and one line a bundle."""
    try:
        bundles = build_demo_models(target, precision=precision, report=click.echo)
    except Failure as failure:
        click.echo(f"error: {failure}", err=True)
        raise SystemExit(failure.exit_code) from None
    for bundle in bundles:
        click.echo(f"{bundle.endpoint}: {bundle.path}")


if __name__ == "__main__":
    main()
