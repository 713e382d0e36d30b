"""The gates of the desk: a bundle is refused when it is written and when it is deployed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.bundles import write_bundle
from tests.contract.onnx_files import onnx_bytes
from tests.contract.plans import Plan, build
from transformer_serving.contract.endpoint import read_endpoint
from transformer_serving.contract.manifest import Golden
from transformer_serving.desk.builders.files import EngineFiles
from transformer_serving.desk.bundle import writer as bundles
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.source.tokenizer import TokenizerFile
from transformer_serving.desk.versions.lock import read_lock

PIN = read_lock().image
FITTING = Plan(PIN.tensorrt, 239, "8.6")


def deployed(folder: Path, fields: dict[str, Any], content: bytes, **choices: Any) -> str:
    """What the gate of deploy says of a bundle with this plan."""
    write_bundle(folder, fields, engine="tensorrt", content=content, **choices)
    with pytest.raises(Failure) as caught:
        open_bundle(folder)
    assert caught.value.exit_code == 2
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_a_fitting_bundle_is_opened(tmp_path: Path, endpoint_fields: dict[str, Any]) -> None:
    manifest = write_bundle(tmp_path, endpoint_fields, engine="tensorrt", content=build(FITTING))
    assert open_bundle(tmp_path).manifest == manifest


def test_deploy_refuses_wrong_truncated_and_newer(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    wrong = deployed(tmp_path / "a", endpoint_fields, build(Plan("8.6.1.6", 236, "8.6")))
    assert f"built by TensorRT 8.6.1.6, the image pin {PIN.release} has {PIN.tensorrt}" in wrong
    assert "is cut short" in deployed(tmp_path / "b", endpoint_fields, build(FITTING)[:-9])
    newer = deployed(tmp_path / "c", endpoint_fields, build(FITTING), kit_version="99.0")
    assert "made by transformer-serving 99.0" in newer


def test_deploy_refuses_a_newer_manifest_and_changed_files(
    tmp_path: Path, endpoint_fields: dict[str, Any]
) -> None:
    write_bundle(tmp_path, endpoint_fields, engine="tensorrt", content=build(FITTING))
    (tmp_path / "preprocess.py").write_text("changed")
    with pytest.raises(Failure, match="'preprocess.py' is not the one of the manifest"):
        open_bundle(tmp_path)
    path = tmp_path / "model" / "manifest.json"
    values = {**json.loads(path.read_text()), "schema": 9, "kit_version": "99.0"}
    path.write_text(json.dumps(values))
    with pytest.raises(Failure, match=r"made by transformer-serving 99\.0.*upgrade"):
        open_bundle(tmp_path)


def test_deploy_refuses_another_gpu_where_the_servers_is_named(
    tmp_path: Path, endpoint_fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSFORMER_SERVING_COMPUTE_CAPABILITY", "7.5")
    said = deployed(tmp_path, endpoint_fields, build(FITTING))
    assert "built for GPUs of compute capability 8.6" in said


def test_convert_refuses_what_the_pinned_server_cannot_read(
    tmp_path: Path, endpoint_fields: dict[str, Any], tokenizer_json: bytes
) -> None:
    engine = tmp_path / "model.onnx"
    engine.write_bytes(onnx_bytes(opset=999))
    content = bundles.BundleContent(
        endpoint=read_endpoint(json.dumps(endpoint_fields)),
        tokenizer=TokenizerFile(tokenizer_json, 0, "[PAD]", 0, "right"),
        engine=EngineFiles("onnxruntime", "fp32", (engine,)),
        golden=Golden({"text": "a"}, {"label": "POSITIVE", "score": 0.5}, 1e-4),
        parity={},
        source={},
    )
    with pytest.raises(Failure, match="opset 999, at most"):
        bundles.write_bundle(content, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
