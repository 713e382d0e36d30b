"""A bundle of engine vllm before several Tritons, and bundles that hold what none may."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.bundles import with_file, write_bundle
from tests.contract.test_gate import first, said
from transformer_serving.contract.gate.refusals import require_servable
from transformer_serving.contract.gate.server_facts import ServerFacts, server_facts
from transformer_serving.contract.manifest import Manifest
from transformer_serving.contract.vllm.arguments import arguments_of
from transformer_serving.desk.versions.lock import read_lock
from transformer_serving.engine.bundle_config import config_faults

OLD = ServerFacts(name="this server", triton="2.51.0")
NEW = ServerFacts(name="this server", triton="2.53.0")


@pytest.fixture
def manifest(tmp_path: Path, endpoint_fields: dict[str, Any]) -> Manifest:
    content = arguments_of("bf16", 64, {}).encode()
    return write_bundle(tmp_path, endpoint_fields, engine="vllm", content=content)


def test_an_older_triton_is_refused_with_what_serves_it(manifest: Manifest, tmp_path: Path) -> None:
    assert said(manifest, tmp_path, NEW) == []
    # Nothing is refused for what is unknown of a server.
    assert said(manifest, tmp_path, ServerFacts()) == []
    assert said(manifest, tmp_path, OLD) == ["vllm"]
    message = first(manifest, tmp_path, OLD)
    assert "needs Triton 2.53.0 or newer (release 24.12), and this server has 2.51.0" in message
    assert "-f compose/vllm.yaml" in message
    # As the controller asks, of the model's folder alone, in a container that says its version.
    here = server_facts({"TRITON_SERVER_VERSION": "2.51.0", "PATH": ""})
    with pytest.raises(Exception, match=r"has 2\.51\.0"):
        require_servable(manifest, tmp_path / "model", here, config_faults)
    require_servable(manifest, tmp_path / "model", NEW, config_faults)


def test_the_desk_asks_the_pin_of_the_vllm_image(manifest: Manifest, tmp_path: Path) -> None:
    lock = read_lock()
    assert said(manifest, tmp_path, replace(lock.facts("vllm"), kit_version=None)) == []
    moved = replace(lock, vllm_image=replace(lock.vllm_image, release="24.10", triton="2.51.0"))
    assert "the vLLM image pin 24.10 has 2.51.0" in first(manifest, tmp_path, moved.facts("vllm"))


@pytest.mark.parametrize(
    "name", ["modeling_own.py", "pytorch_model-00001-of-00002.bin", "model.pt", "lib.so", "x.pkl"]
)
def test_code_and_pickles_are_refused(manifest: Manifest, tmp_path: Path, name: str) -> None:
    other = with_file(manifest, tmp_path, name)
    assert f"file '{name}' is none that a bundle of engine vllm may have" in first(
        other, tmp_path, NEW
    )


def test_weights_and_texts_are_taken(manifest: Manifest, tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.safetensors.index.json", "tokenizer_config.json"):
        manifest = with_file(manifest, tmp_path, name)
    require_servable(manifest, tmp_path / "model", NEW, config_faults)


def test_arguments_that_lead_out_of_the_bundle_are_refused(
    manifest: Manifest, tmp_path: Path
) -> None:
    text = arguments_of("bf16", 64, {}).replace("{", '{"trust_remote_code": true,', 1)
    other = with_file(manifest, tmp_path, "model.json", text.encode())
    assert "argument 'trust_remote_code' is none" in first(other, tmp_path, NEW)
    named = with_file(manifest, tmp_path, "model.json", b'{"model": "facebook/opt-125m"}')
    assert "field 'model' must be one of ." in first(named, tmp_path, NEW)
    none = replace(manifest, files=tuple(e for e in manifest.files if e.path != "model/model.json"))
    assert "it lists no model.json" in first(none, tmp_path, NEW)
