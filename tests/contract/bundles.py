"""Bundles with a chosen engine file, as convert would write them; small and without a model."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import zipfile
from pathlib import Path
from typing import Any

from transformer_serving.contract.endpoint import Endpoint, read_endpoint
from transformer_serving.contract.identity import code_digest, identity_of, own_parts
from transformer_serving.contract.manifest import Golden, Manifest, entry_of
from transformer_serving.engine.bundle_config import ENGINE_BACKENDS

SUFFIXES = {
    "tensorrt": "model.plan", "onnxruntime": "model.onnx", "openvino": "model.xml",
    "torch": "program.json", "vllm": "model.json",
}  # fmt: skip


def write_bundle(
    folder: Path,
    endpoint_fields: dict[str, Any],
    *,
    engine: str,
    content: bytes,
    tensorrt: dict[str, Any] | None = None,
    kit_version: str = "0.1.0",
    config: str = "",
) -> Manifest:
    """Write the folder and its manifest, which is returned; `config` is more of config.pbtxt."""
    model = folder / "model"
    model.mkdir(parents=True, exist_ok=True)
    (model / SUFFIXES[engine]).write_bytes(content)
    (model / "config.pbtxt").write_text(f'backend: "{ENGINE_BACKENDS[engine][0]}"\n{config}')
    parts = {
        entry.path: entry.sha256
        for entry in (entry_of(folder, path) for path in model.iterdir())
        if entry.path != "model/manifest.json"
    }
    endpoint_fields = {**endpoint_fields}
    code = sealed(endpoint_fields, parts)
    (folder / "endpoint.json").write_text(json.dumps(endpoint_fields))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "preprocess.py").write_bytes(code)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = Manifest(
        bundle_version=endpoint_fields["bundle_version"],
        bundle_hash=endpoint_fields["bundle_hash"],
        kit_version=kit_version,
        task=endpoint_fields["task"],
        engine=engine,
        precision="fp16",
        files=tuple(entry_of(folder, path) for path in files if path.name != "manifest.json"),
        source={"model": "test"},
        tools={},
        golden=Golden({"text": "a"}, {"label": "POSITIVE", "score": 0.5}, 1e-4),
        parity={},
        tensorrt=tensorrt,
    )
    (model / "manifest.json").write_text(manifest.to_json())
    return manifest


def endpoint_of(folder: Path) -> Endpoint:
    return read_endpoint((folder / "endpoint.json").read_bytes())


def rewritten(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest of somebody who changed a file and the manifest's hashes with it."""
    files = tuple(entry_of(folder, folder / entry.path) for entry in manifest.files)
    return dataclasses.replace(manifest, files=files)


def with_file(manifest: Manifest, folder: Path, name: str, content: bytes = b"x") -> Manifest:
    """The manifest of one file of the model more, or of that file with other content."""
    path = folder / "model" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    own = entry_of(folder, path)
    others = tuple(entry for entry in manifest.files if entry.path != own.path)
    return dataclasses.replace(manifest, files=(*others, own))


def sealed(endpoint_fields: dict[str, Any], parts: dict[str, str], code: str = "") -> bytes:
    """A preprocess.py that holds its own number, which the fields get, too."""
    head = f"# made for the test\n# bundle-version: 0\n{code}"
    digest = code_digest(f'{head}\nDATA = ""\n'.encode())
    found = identity_of({**parts, **own_parts(json.dumps(endpoint_fields).encode(), b"{}", digest)})
    endpoint_fields["bundle_version"] = found.bundle_version
    endpoint_fields["bundle_hash"] = found.bundle_hash
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("endpoint.json", json.dumps(endpoint_fields))
        archive.writestr("tokenizer.json", "{}")
        archive.writestr("parts.json", json.dumps(parts))
    data = base64.b64encode(buffer.getvalue()).decode()
    head = head.replace("bundle-version: 0", f"bundle-version: {found.bundle_version}")
    return f'{head}\nDATA = "{data}"\n'.encode()
