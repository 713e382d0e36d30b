"""`signing-key new` and `sign`, and the option --sign of the commands that make bundles.

Tested by tests/bundle/test_signing.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from transformer_serving.desk.cli.options import json_option


@click.group("signing-key")
def signing_key() -> None:
    """Keys to sign bundles with."""


@signing_key.command()
@click.argument("name")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    default=Path("."),
    metavar="DIR",
    help="Folder of the two files.  [default: here]",
)
@json_option
def new(name: str, folder: Path, as_json: bool) -> None:
    """Make NAME.key, readable by you only, and NAME.pub, the line to trust it by."""
    from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
    from transformer_serving.desk.bundle.signing import new_key

    path, key = new_key(name, folder)
    if as_json:
        click.echo(json.dumps({"key": str(path), "public": key.public}, indent=2))
        return
    click.echo(f"{path} signs: keep it to yourself")
    click.echo(f"{TRUSTED_KEYS_VARIABLE}={key.public}")


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("key", type=click.Path(path_type=Path))
@json_option
def sign(bundle: Path, key: Path, as_json: bool) -> None:
    """Sign BUNDLE with KEY in place; its number stays."""
    from transformer_serving.desk.bundle.signing import read_key, sign_bundle

    private = read_key(key)
    version = sign_bundle(bundle, private).manifest.bundle_version
    if as_json:
        click.echo(json.dumps({"bundle_version": version, "signed_by": private.name}, indent=2))
        return
    click.echo(f"{bundle}, bundle {version}, is signed by {private.name}")


@contextmanager
def signing(bundle: Path, key: Path | None) -> Iterator[None]:
    """Sign what the block makes; a key that cannot be used is refused before anything is made."""
    if key is None:
        yield
        return
    from transformer_serving.desk.bundle.signing import read_key, sign_bundle

    private = read_key(key)
    yield
    sign_bundle(bundle, private)


COMMANDS = (signing_key, sign)
