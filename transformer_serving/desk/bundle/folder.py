"""A bundle on disk, opened and verified: the one reader of every command that takes a BUNDLE.

Tested by tests/bundle/test_writer.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.refusals import open_manifest
from transformer_serving.contract.manifest import Manifest
from transformer_serving.contract.signatures import (
    TrustedKeys,
    check_signed_manifest,
    check_signed_preprocess,
    read_trusted_keys,
)
from transformer_serving.desk.bundle.gate import pass_gate
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.versions.lock import read_lock


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk whose files are those of its manifest."""

    folder: Path
    endpoint: Endpoint
    manifest: Manifest

    @property
    def model_folder(self) -> Path:
        return self.folder / "model"

    @property
    def preprocess(self) -> Path:
        return self.folder / "preprocess.py"


def open_bundle(path: Path) -> Bundle:
    """Read and verify a bundle. Raises Failure (exit code 2) that says what is wrong with it."""
    bundle = _opened(path)
    _check_signatures(bundle)
    return bundle


def open_bundle_to_sign(path: Path) -> Bundle:
    """As open_bundle, but nobody's signature is asked for yet."""
    return _opened(path)


def open_listing(path: Path) -> Manifest:
    """The manifest of a folder that has nothing else yet but its signature. Raises Failure (exit
    code 2) where it cannot be read, or where no trusted key signed it."""
    with _served_from(path) as keys:
        if keys is not None and (path / "model" / "manifest.json").is_file():
            check_signed_manifest(path / "model", keys)
    return _manifest(path)


def _check_signatures(bundle: Bundle) -> None:
    with _served_from(bundle.folder) as keys:
        if keys is not None:
            check_signed_manifest(bundle.model_folder, keys)
            check_signed_preprocess(bundle.preprocess.read_bytes(), keys)


@contextmanager
def _served_from(folder: Path) -> Iterator[TrustedKeys | None]:
    """The keys that are trusted here, if any. Says ContractErrors as Failures."""
    try:
        yield read_trusted_keys(os.environ)
    except ContractError as error:
        raise Failure(f"{folder} is not served from here: {error}", exit_code=2) from error


def _opened(path: Path) -> Bundle:
    refuse_links(path)
    manifest = _manifest(path)
    try:
        endpoint = read_endpoint((path / "endpoint.json").read_bytes(), str(path / "endpoint.json"))
    except (ContractError, OSError) as error:
        raise Failure(f"{path} is no valid bundle: {error}", exit_code=2) from error
    pass_gate(manifest, path, endpoint)
    return Bundle(path, endpoint, manifest)


def _manifest(path: Path) -> Manifest:
    manifest_path = path / "model" / "manifest.json"
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise Failure(
            f"{path} {found}; name the folder of a bundle, which '{command_line('convert')}' makes",
            exit_code=2,
        )
    if not manifest_path.is_file():
        raise Failure(
            f"{path} is no bundle: it has no model/manifest.json; make one with "
            f"'{command_line('convert')}'",
            exit_code=2,
        )
    try:
        facts = read_lock().facts()
        return open_manifest(manifest_path.read_bytes(), facts, str(manifest_path))
    except (ContractError, OSError) as error:
        raise Failure(f"{path} is no valid bundle: {error}", exit_code=2) from error


def refuse_links(path: Path) -> None:
    """Raises Failure (exit code 2) for a symbolic link anywhere below the bundle's folder.

    What it names would be read, uploaded and served in the bundle's name.
    """
    for folder, folders, files in os.walk(path):
        for name in sorted((*folders, *files)):
            inside = Path(folder) / name
            if inside.is_symlink():
                raise Failure(
                    f"{path} is no valid bundle: '{inside.relative_to(path)}' is a symbolic link; "
                    f"put the file itself there: cp -rL {path} COPY",
                    exit_code=2,
                )
