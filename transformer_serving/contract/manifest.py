"""manifest.json: what a bundle is made of, where it came from, and what it was seen to answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformer_serving.contract.endpoint import MAX_VERSION
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.fields import Fields, parse_object

SCHEMA = 1
FILE_NAME = "manifest.json"
# Beside the manifest; contract.signatures.
SIGNATURE_NAME = "manifest.sig"
TORCH = "torch"
ENGINES = ("openvino", "onnxruntime", "tensorrt", TORCH, "vllm")
PRECISIONS = ("fp32", "fp16", "bf16", "int8")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class FileEntry:
    """One file of the bundle; `path` is relative to the bundle, with forward slashes."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Golden:
    """A request body and the answer the reference gave; scores may differ by `tolerance`."""

    request: dict[str, Any]
    answer: Any
    tolerance: float


@dataclass(frozen=True)
class Manifest:
    """manifest.json, checked. `source`, `tools`, `parity` and `tensorrt` are for people and doctor.

    `tensorrt` holds version and compute_capability of a TensorRT plan, None for other engines.
    """

    bundle_version: int
    bundle_hash: str
    kit_version: str
    task: str
    engine: str
    precision: str
    files: tuple[FileEntry, ...]
    source: dict[str, Any]
    tools: dict[str, Any]
    golden: Golden
    parity: dict[str, Any]
    tensorrt: dict[str, Any] | None = None

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


def read_manifest(text: str | bytes, where: str = FILE_NAME) -> Manifest:
    """Parse and check manifest.json. Raises ContractError naming field, limit and got."""
    fields = parse_object(text, where)
    fields.number("schema", low=SCHEMA, high=SCHEMA)
    golden = fields.inner("golden")
    return Manifest(
        bundle_version=fields.number("bundle_version", low=1, high=MAX_VERSION),
        bundle_hash=fields.take("bundle_hash", str),
        kit_version=fields.take("kit_version", str),
        task=fields.take("task", str),
        engine=fields.choice("engine", ENGINES),
        precision=fields.choice("precision", PRECISIONS),
        files=tuple(_file(row) for row in fields.rows("files")),
        source=fields.take("source", dict),
        tools=fields.take("tools", dict),
        golden=Golden(
            golden.take("request", dict),
            golden.values.get("answer"),
            golden.take("tolerance", float),
        ),
        parity=fields.take("parity", dict),
        tensorrt=fields.optional("tensorrt", dict),
    )


def _file(fields: Fields) -> FileEntry:
    path = fields.take("path", str)
    parts = path.split("/")
    if path.startswith("/") or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise ContractError(f"{fields.where}: field 'path' must stay inside the bundle")
    return FileEntry(path, fields.take("sha256", str), fields.number("size", low=0, high=2**53))


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file, read in blocks of 1 MiB."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def entry_of(root: Path, path: Path) -> FileEntry:
    """The entry of `path`, a file below the bundle folder `root`."""
    return FileEntry(path.relative_to(root).as_posix(), sha256_of(path), path.stat().st_size)


def verify_files(manifest: Manifest, root: Path, *, prefix: str = "") -> None:
    """Check every file that the manifest lists under `prefix` against the folder `root`.

    `prefix` is cut off: the controller holds only the bundle's `model/` folder. A file that the
    manifest does not list is refused too. Raises ContractError naming the first bad file.
    """
    listed = {
        entry.path.removeprefix(prefix): entry
        for entry in manifest.files
        if entry.path.startswith(prefix)
    }
    for name, entry in listed.items():
        path = root / name
        if not path.is_file():
            raise ContractError(f"file '{name}' of the manifest is missing; convert again")
        if path.stat().st_size != entry.size or sha256_of(path) != entry.sha256:
            raise ContractError(
                f"file '{name}' is not the one of the manifest "
                f"({path.stat().st_size} bytes, expected {entry.size}); convert again"
            )
    present = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    names = (FILE_NAME, SIGNATURE_NAME)
    own = {*names, *(f"model/{name}" for name in names)}
    extra = sorted(present - set(listed) - own)
    if extra:
        raise ContractError(f"file '{extra[0]}' is not in the manifest; remove it or convert again")


def bundle_hash(parts: Mapping[str, str]) -> str:
    """The hash that names a bundle: sha256 over its sorted part names and part hashes."""
    text = "".join(f"{name}\0{value}\n" for name, value in sorted(parts.items()))
    return hashlib.sha256(text.encode()).hexdigest()


def bundle_version(digest: str) -> int:
    """The Triton model version of a bundle hash: 40 bits, so that JSON keeps it exact.

    Never 1: clearml-serving's own Triton call asks for that version (contract.naming).
    """
    return int(digest[:10], 16) % (2**40 - 2) + 2
