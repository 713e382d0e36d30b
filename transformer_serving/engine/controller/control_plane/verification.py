"""Decides whether an endpoint may be served, as which Triton version, with which configuration.

Tested by tests/bundle/test_three_gates.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.refusals import open_manifest, require_servable
from transformer_serving.contract.gate.server_facts import (
    COMPATIBLE_VARIABLE,
    ServerFacts,
    is_version_compatible,
    server_facts,
)
from transformer_serving.contract.identity import check_preprocess, model_parts, stated_version
from transformer_serving.contract.manifest import FILE_NAME as MANIFEST, Manifest
from transformer_serving.contract.naming import STOCK_VERSION
from transformer_serving.contract.signatures import (
    TRUSTED_KEYS_VARIABLE,
    check_signed_manifest,
    check_signed_preprocess,
    read_trusted_keys,
)
from transformer_serving.engine.bundle_config import config_faults
from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.endpoint_config import (
    backend_of,
    check_unquoted,
    config_from_endpoint,
    contradiction,
    tuned,
)
from transformer_serving.engine.errors import EngineError
from transformer_serving.engine.model_config import FILE_NAME as CONFIG, ModelConfig, from_text


class Refused(EngineError):
    """The endpoint cannot be served as it is; the message says what to change."""


@dataclass(frozen=True)
class Verified:
    """What may be loaded. `verified` is False when no manifest vouches for the files; `signed_by`
    are the entries of the trusted keys that signed it, '' where none are named."""

    number: int
    config: ModelConfig
    bundle_version: int | None
    verified: bool
    signed_by: str = ""


def verify(served: Served, folder: Path, preprocess: bytes | None) -> Verified:
    """Check the model's files, its manifest and its preprocess file against each other.

    Raises Refused, ConfigError or ContractError with the reason for `status`.
    """
    keys = read_trusted_keys(os.environ)
    signers = set()
    if keys is not None:
        signers = {check_signed_manifest(folder, keys), check_signed_preprocess(preprocess, keys)}
    verified = _verified(served, folder, preprocess, signed=keys is not None)
    refuse_unsigned_code(backend_of(verified.config), os.environ)
    check_unquoted(verified.config)
    return replace(verified, signed_by=" ".join(sorted(signers)))


def check_again(folder: Path, config: ModelConfig) -> None:
    """What an earlier kit verified, by the rules of this one, as far as the files here tell: nobody
    is asked for preprocess.py, which ClearML alone has.

    Raises ConfigError or ContractError.
    """
    _manifest(folder)
    check_unquoted(config)


def _verified(served: Served, folder: Path, preprocess: bytes | None, *, signed: bool) -> Verified:
    stated = None if preprocess is None else stated_version(preprocess)
    manifest = _manifest(folder)
    if manifest is None:
        if stated is not None:
            raise Refused(
                f"preprocess.py is of bundle {stated}, the model has no {MANIFEST}; deploy them "
                "together"
            )
        config = config_from_endpoint(
            served.fields,
            name=served.model,
            framework=served.framework,
            files=sorted(path.name for path in folder.iterdir()),
        )
        return Verified(STOCK_VERSION, config, None, verified=False)
    if stated is not None and stated != manifest.bundle_version:
        raise Refused(
            f"preprocess.py is of bundle {stated}, the model of bundle {manifest.bundle_version}; "
            "deploy them together"
        )
    if preprocess is not None and (stated is not None or signed):
        check_preprocess(preprocess, model_parts(manifest.files))
    number = STOCK_VERSION if stated is None else manifest.bundle_version
    return Verified(
        number,
        _bundle_config(served, folder, stock=stated is None),
        manifest.bundle_version,
        verified=True,
    )


def _manifest(folder: Path) -> Manifest | None:
    path = folder / MANIFEST
    if not path.is_file():
        return None
    manifest = open_manifest(path.read_bytes(), _server())
    require_servable(manifest, folder, _server(), config_faults)
    return manifest


def refuse_unsigned_code(backend: str, environment: Mapping[str, str]) -> None:
    """Raises Refused for a plan, with a manifest or without, where Triton has the flag: it runs
    the code of each that brings some, and no header says which those are."""
    if (
        backend == "tensorrt"
        and is_version_compatible(environment)
        and read_trusted_keys(environment) is None
    ):
        raise Refused(
            "a TensorRT plan may bring code of its own that Triton runs, as "
            f"{COMPATIBLE_VARIABLE} is set, and nobody has to have signed it; name whose bundles "
            f"are served in {TRUSTED_KEYS_VARIABLE}, or unset {COMPATIBLE_VARIABLE}"
        )


@cache
def _server() -> ServerFacts:
    """What this Triton can load; asked once, the machine does not change under it."""
    return server_facts(os.environ)


def _bundle_config(served: Served, folder: Path, *, stock: bool) -> ModelConfig:
    path = folder / CONFIG
    if not path.is_file():
        raise ContractError(f"file '{CONFIG}' of the bundle is missing; convert again")
    config = from_text(path.read_text("utf-8"), CONFIG)
    fault = contradiction(config, served.fields, tuning=stock)
    if fault is not None:
        raise Refused(fault)
    return tuned(config, served.fields) if stock else config
