"""A bundle on disk, opened and verified: the one reader of every command that takes a BUNDLE."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from contract.endpoint import Endpoint, read_endpoint
from contract.errors import ContractError
from contract.gate import open_manifest
from contract.manifest import Manifest
from transformer_serving.bundle_gate import pass_gate
from transformer_serving.failure import Failure
from transformer_serving.versions.lock import read_lock


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
    manifest_path = path / "model" / "manifest.json"
    if not manifest_path.is_file():
        raise Failure(
            f"{path} is no bundle: it has no model/manifest.json; make one with "
            "'transformer-serving convert'",
            exit_code=2,
        )
    try:
        facts = read_lock().facts()
        manifest = open_manifest(manifest_path.read_bytes(), facts, str(manifest_path))
        endpoint = read_endpoint((path / "endpoint.json").read_bytes(), str(path / "endpoint.json"))
    except (ContractError, OSError) as error:
        raise Failure(f"{path} is no valid bundle: {error}", exit_code=2) from error
    pass_gate(manifest, path, endpoint)
    return Bundle(path, endpoint, manifest)
