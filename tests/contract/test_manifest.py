from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.manifest import (
    Golden,
    Manifest,
    bundle_hash,
    bundle_version,
    entry_of,
    read_manifest,
    verify_files,
)


def manifest_of(root: Path) -> Manifest:
    files = tuple(entry_of(root, path) for path in sorted(root.rglob("*")) if path.is_file())
    return Manifest(
        bundle_version=7,
        bundle_hash="ab",
        kit_version="0",
        task="text-classification",
        engine="onnxruntime",
        precision="fp32",
        files=files,
        source={"model": "test"},
        tools={},
        golden=Golden({"text": "a"}, {"label": "X", "score": 0.5}, 1e-4),
        parity={},
    )


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.onnx").write_bytes(b"weights")
    (tmp_path / "preprocess.py").write_text("x = 1\n")
    return tmp_path


def test_what_is_written_is_read_back(bundle: Path) -> None:
    manifest = manifest_of(bundle)
    assert read_manifest(manifest.to_json()) == manifest


def test_untouched_files_pass_whole_and_by_their_prefix(bundle: Path) -> None:
    manifest = manifest_of(bundle)
    verify_files(manifest, bundle)
    verify_files(manifest, bundle / "model", prefix="model/")


def test_a_changed_a_missing_and_an_added_file_are_named(bundle: Path) -> None:
    manifest = manifest_of(bundle)
    model = bundle / "model" / "model.onnx"
    model.write_bytes(b"weightz")
    with pytest.raises(ContractError, match=r"'model/model.onnx' is not the one of the manifest"):
        verify_files(manifest, bundle)
    model.unlink()
    with pytest.raises(ContractError, match=r"'model/model.onnx' of the manifest is missing"):
        verify_files(manifest, bundle)
    model.write_bytes(b"weights")
    (bundle / "extra.bin").write_bytes(b"")
    with pytest.raises(ContractError, match=r"'extra.bin' is not in the manifest"):
        verify_files(manifest, bundle)


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a//b", "a/./b", "a\\b", ""])
def test_a_path_that_leaves_the_bundle_is_refused(bundle: Path, path: str) -> None:
    text = manifest_of(bundle).to_json().replace("preprocess.py", path.replace("\\", "\\\\"))
    with pytest.raises(ContractError, match="must stay inside the bundle"):
        read_manifest(text)


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_the_hash_does_not_depend_on_the_order_of_parts(parts: dict[str, str]) -> None:
    again = dict(reversed(parts.items()))
    assert bundle_hash(parts) == bundle_hash(again)
    version = bundle_version(bundle_hash(parts))
    assert 1 < version < 2**53
