"""`signing-key new` and `sign`, and the option --sign of the commands that make bundles.

Tested by tests/bundle/test_signing.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from transformer_serving.desk.cli.options import json_option

if TYPE_CHECKING:
    from transformer_serving.desk.bundle.signing import SigningKey


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


def key_of(file: Path | None) -> SigningKey | None:
    """Of --sign: a key that cannot be used is refused before anything is made."""
    if file is None:
        return None
    from transformer_serving.desk.bundle.signing import read_key

    return read_key(file)


COMMANDS = (signing_key, sign)
