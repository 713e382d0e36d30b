"""A bundle: one folder with everything that an endpoint serves, named by the hash of its parts.

endpoint.json, tokenizer.json, preprocess.py   what the inference container works with
model/                                         what Triton gets: engine files, config, manifest,
                                               and the parity set, which the controller asks it
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformer_serving.contract.endpoint import Endpoint, Recorded, read_endpoint
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.gate.release import kit_version
from transformer_serving.contract.gate.server_facts import installed
from transformer_serving.contract.identity import ENDPOINT, PREPROCESS, TOKENIZER, model_parts
from transformer_serving.contract.manifest import (
    FILE_NAME as MANIFEST,
    FileEntry,
    Golden,
    Manifest,
    entry_of,
)
from transformer_serving.desk.builders.files import EngineFiles, link_or_copy
from transformer_serving.desk.bundle import preprocess_file
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.bundle.gate import ON_WRITING, pass_gate
from transformer_serving.desk.bundle.signing import SigningKey, signed
from transformer_serving.desk.bundle.triton_config import config_text
from transformer_serving.desk.failure import ConversionRefused, Failure
from transformer_serving.desk.folder_replacement import place_of, replacing_folder
from transformer_serving.desk.scratch import scratch_beside
from transformer_serving.desk.source.json_files import read_json
from transformer_serving.desk.source.tokenizer import TokenizerFile
from transformer_serving.engine.model_config import FILE_NAME as CONFIG, from_text
from transformer_serving.engine.proof.greedy_set import GreedySet, is_greedy_set, read_greedy_set
from transformer_serving.engine.proof.parity_set import (
    FILE_NAME as PARITY,
    ParitySet,
    read_parity_set,
)

MODEL = "model"
_TOOLS = (
    *("torch", "transformers", "sentence-transformers", "onnx", "onnxruntime", "openvino"),
    "openvino-genai",
)


@dataclass(frozen=True)
class BundleContent:
    """What goes into a bundle; `endpoint` without its version and hash, which are computed.

    `parity_set` None: nobody can prove the engine where it is served.
    """

    endpoint: Endpoint
    tokenizer: TokenizerFile
    engine: EngineFiles
    golden: Golden
    parity: Mapping[str, Any]
    source: Mapping[str, Any]
    parity_set: ParitySet | GreedySet | None = None


def write_bundle(content: BundleContent, target: Path, key: SigningKey | None = None) -> Bundle:
    """Write the bundle folder `target`; it appears whole, and signed where there is a `key`, or
    not at all.

    The engine's files are moved, not copied. A bundle that is already there is replaced; any
    other folder there is refused (ConversionRefused).
    """
    check_target(target)
    with replacing_folder(target) as folder:
        model = folder / MODEL
        model.mkdir()
        for path in content.engine.files:
            shutil.move(path, model / path.name)
        (model / CONFIG).write_text(config_text(content.endpoint, content.engine), "utf-8")
        (folder / TOKENIZER).write_bytes(content.tokenizer.content)
        model_files = [entry_of(folder, path) for path in sorted(model.iterdir())]
        endpoint = _versioned(content, model_files)
        if content.parity_set is not None:
            written = content.parity_set.to_json()
            _require_provable(written)
            (model / PARITY).write_text(written, "utf-8")
            model_files.append(entry_of(folder, model / PARITY))
        endpoint_json = endpoint.to_json()
        _require_readable(endpoint_json)
        (folder / ENDPOINT).write_text(endpoint_json, "utf-8")
        parts = model_parts(model_files)
        code = preprocess_file.build(endpoint_json, content.tokenizer.content, parts)
        (folder / PREPROCESS).write_text(code, "utf-8")
        own = [entry_of(folder, folder / name) for name in (ENDPOINT, PREPROCESS, TOKENIZER)]
        manifest = _manifest(content, endpoint, (*own, *model_files))
        (model / MANIFEST).write_text(manifest.to_json(), "utf-8")
        pass_gate(manifest, folder, endpoint, ON_WRITING)
        bundle = Bundle(folder, endpoint, manifest)
        if key is not None:
            bundle = signed(bundle, key)
    return replace(bundle, folder=target)


def check_target(target: Path) -> None:
    """Raise ConversionRefused where no bundle can be written, before there is one to write."""
    _check_replaceable(target)
    if target.exists() and not is_bundle(target) and (target.is_file() or any(target.iterdir())):
        raise ConversionRefused(f"'{target}' exists and is no bundle; name another --output")
    places = place_of(target).absolute().parents
    above = next(folder for folder in places if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise ConversionRefused(f"nothing can be written into '{above}'; name another --output")


def _check_replaceable(target: Path) -> None:
    """What a new bundle cannot be renamed to, or what would be gone from under this command."""
    place, here = target.resolve(), Path.cwd().resolve()
    if place == here or place in here.parents:
        raise ConversionRefused(
            f"'{target}' is the folder that this command runs in, or one above it, and cannot be "
            "replaced; run it from another folder, or name one below, such as --output ./bundle"
        )
    if os.path.ismount(place):
        raise ConversionRefused(
            f"'{target}' is a mount point and cannot be replaced; name a folder inside it: "
            f"--output {target / 'bundle'}"
        )


def renew_bundle(folder: Path) -> Bundle:
    """Write a bundle again with this kit's preprocess code, contract and Triton config.

    The model, its golden answer, its parity figures and set stay; the version changes where a part
    did.
    Raises Failure when the bundle is not as its manifest says.
    """
    with content_of(open_bundle(folder), folder.parent) as content:
        return write_bundle(content, folder)


@contextmanager
def content_of(bundle: Bundle, scratch: Path) -> Iterator[BundleContent]:
    """What a bundle was written from, for one `write_bundle`; the bundle itself stays as it is.

    The engine's files are second names in a folder of `scratch`, which goes with the block, or
    copies where that is another disk. Raises Failure for a parity set that is none.
    """
    tokens, manifest = bundle.endpoint.tokens, bundle.manifest
    config = from_text((bundle.model_folder / CONFIG).read_text("utf-8"))
    with scratch_beside(scratch / MODEL, ".renew.") as own:
        names = {Path(entry.path).name for entry in manifest.files if _is_engine_file(entry)}
        # The file that the engine opens comes first.
        ordered = sorted(names, key=lambda name: (name != config.default_model_filename, name))
        files = tuple(own / name for name in ordered)
        for path in files:
            link_or_copy(bundle.model_folder / path.name, path)
        yield BundleContent(
            endpoint=bundle.endpoint,
            tokenizer=TokenizerFile(
                content=(bundle.folder / TOKENIZER).read_bytes(),
                pad_id=tokens.pad_id,
                pad_token=tokens.pad_token,
                pad_type_id=tokens.pad_type_id,
                padding_side=tokens.padding_side,
            ),
            engine=EngineFiles(
                manifest.engine,
                manifest.precision,
                files,
                manifest.tensorrt,
                {name: value.string_value for name, value in config.parameters.items()},
                sum(group.count for group in config.instance_group) or 1,
            ),
            golden=manifest.golden,
            parity=manifest.parity,
            source=manifest.source,
            parity_set=_parity_set(bundle),
        )


def _parity_set(bundle: Bundle) -> ParitySet | GreedySet | None:
    path = bundle.model_folder / PARITY
    try:
        return _read_set(path.read_bytes()) if path.is_file() else None
    except ContractError as error:
        raise Failure(f"{bundle.folder} is no valid bundle: {error}", exit_code=2) from error


def _require_readable(endpoint_json: str) -> None:
    """Likewise what no inference container would."""
    try:
        read_endpoint(endpoint_json)
    except ContractError as error:
        raise ConversionRefused(f"the endpoint could not be served ({error})") from error


def _require_provable(parity_json: str) -> None:
    """Refuse here, in words, what no controller would take."""
    try:
        _read_set(parity_json.encode())
    except ContractError as error:
        raise ConversionRefused(
            f"the engine could not be proven where it serves ({error}); convert with other lengths "
            "by --seq-len and --max-length"
        ) from error


def _read_set(raw: bytes) -> ParitySet | GreedySet:
    return read_greedy_set(raw) if is_greedy_set(raw) else read_parity_set(raw)


def _is_engine_file(entry: FileEntry) -> bool:
    own = {f"{MODEL}/{CONFIG}", f"{MODEL}/{PARITY}"}
    return entry.path.startswith(f"{MODEL}/") and entry.path not in own


def is_bundle(folder: Path) -> bool:
    """Whether `folder` has a bundle's manifest, of whichever kit; other programs have manifests of
    that name too. What else it says is not checked."""
    values = read_json(folder / MODEL / MANIFEST) or {}
    named = {"bundle_version", "bundle_hash"} <= values.keys()
    return named and isinstance(values.get("schema"), int)


def _versioned(content: BundleContent, model_files: list[FileEntry]) -> Endpoint:
    """With the version that the parts give. As the golden answer, the parity set is none of them:
    it is what a processor computed, in digits of its own, and decides nothing that is served."""
    golden = content.golden
    endpoint = replace(
        content.endpoint,
        golden=golden.request,
        recorded=Recorded(golden.answer, golden.tolerance),
    )
    own = preprocess_file.identity(
        endpoint.to_json(),
        endpoint.task,
        content.tokenizer.content,
        {entry.path: entry.sha256 for entry in model_files},
    )
    return replace(endpoint, bundle_hash=own.bundle_hash, bundle_version=own.bundle_version)


def _manifest(content: BundleContent, endpoint: Endpoint, files: tuple[FileEntry, ...]) -> Manifest:
    return Manifest(
        bundle_version=endpoint.bundle_version,
        bundle_hash=endpoint.bundle_hash,
        kit_version=kit_version(),
        task=endpoint.task,
        engine=content.engine.engine,
        precision=content.engine.precision,
        files=files,
        source=dict(content.source),
        tools={
            "python": platform.python_version(),
            **{name: installed(name) or "not installed" for name in _TOOLS},
        },
        golden=content.golden,
        parity=dict(content.parity),
        tensorrt=None if content.engine.facts is None else dict(content.engine.facts),
    )
