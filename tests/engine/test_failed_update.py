"""Updates that only Triton can judge: the old version must serve on through each of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.engine.serving import FIELDS, preprocess_of, serving, write_bundle
from tests.engine.test_service import answers, ready
from tests.engine.triton_server import TritonServer
from transformer_serving.contract.manifest import entry_of, read_manifest
from transformer_serving.engine.endpoint_config import EndpointFields, TensorFields
from transformer_serving.engine.model_config import FILE_NAME, ModelConfig, from_text, to_text

INT64 = dataclasses.replace(
    FIELDS,
    inputs=TensorFields(["input_ids", "attention_mask"], ["int64"] * 2, [[-1]] * 2),
)


def bad_parameter(config: ModelConfig) -> None:
    """Both versions share this configuration, and neither can be loaded with it."""
    config.parameters["intra_op_thread_count"].string_value = "many"


def wrong_types(config: ModelConfig) -> None:
    """The versions cannot share a configuration: the new one is tried alone."""
    for tensor in config.input:
        tensor.data_type = 9


def write_changed_bundle(folder: Path, version: int, change: object) -> Path:
    model = write_bundle(folder, version, scale=2.0)
    config = from_text((model / FILE_NAME).read_text())
    change(config)  # type: ignore[operator]
    (model / FILE_NAME).write_text(to_text(config))
    manifest = read_manifest((model / "manifest.json").read_bytes())
    listed = [path for path in sorted(model.iterdir()) if path.name != "manifest.json"]
    files = tuple(entry_of(folder, path) for path in listed)
    (model / "manifest.json").write_text(dataclasses.replace(manifest, files=files).to_json())
    return model


@pytest.mark.parametrize(
    ("change", "fields", "reason"),
    [
        (bad_parameter, FIELDS, "parameter 'intra_op_thread_count' must be a whole number"),
        (wrong_types, INT64, "'input_ids' is int32 in the model and int64 in the configuration"),
    ],
)
def test_the_old_version_serves_on(
    triton_server: TritonServer,
    tmp_path: Path,
    change: object,
    fields: EndpointFields,
    reason: str,
) -> None:
    with serving(triton_server, tmp_path) as one:
        one.control_plane.add("kept", write_bundle(tmp_path / "a", 101), preprocess_of(101))
        one.wait("kept", ready=True, bundle_version=101)
        bad = write_changed_bundle(tmp_path / "b", 202, change)
        one.control_plane.add("kept", bad, preprocess_of(202), fields=fields)
        row = one.wait_reason("kept", reason)
        assert row["ready"]
        assert row["bundle_version"] == 101
        assert answers(triton_server, "kept", 101, 1.0)
        assert not ready(triton_server, "kept", 202)
        good = write_bundle(tmp_path / "c", 303, scale=3.0)
        one.control_plane.add("kept", good, preprocess_of(303))
        one.wait("kept", ready=True, bundle_version=303, reason=None)
        assert answers(triton_server, "kept", 303, 3.0)
        one.control_plane.remove("kept")
        one.wait_gone("kept")
