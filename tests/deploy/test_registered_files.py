"""What is unpacked of an archive that somebody has put in place of a registered bundle."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stack.small_bundles import write_small
from transformer_serving.contract.identity import DAMAGED_ARCHIVE
from transformer_serving.contract.signatures import TRUSTED_KEYS_VARIABLE
from transformer_serving.desk.bundle.folder import Bundle, open_bundle
from transformer_serving.desk.bundle.signing import new_key, sign_bundle
from transformer_serving.desk.deploy.registered_files import unpack_registered
from transformer_serving.desk.deploy.registry import ModelRegistry, Registered, registry_folder
from transformer_serving.desk.failure import Failure

MUCH = bytes(20_000_000)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_small(tmp_path / "bundle")


def packed(bundle: Bundle, target: Path, other: Mapping[str, bytes | None] = {}) -> Path:
    """As deploy registers it; of `other` what the members hold instead, None: nothing."""
    with registry_folder(bundle) as folder, zipfile.ZipFile(target, "w", 8) as archive:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        held: dict[str, bytes | None] = {
            str(path.relative_to(folder)): path.read_bytes() for path in files
        }
        for name, content in {**held, **other}.items():
            if content is not None:
                archive.writestr(name, content)
    return target


def unpacked(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_whole_one_is_the_bundle_again(bundle: Bundle, tmp_path: Path) -> None:
    unpack_registered(packed(bundle, tmp_path / "model.zip"), tmp_path / "out")
    assert open_bundle(tmp_path / "out").manifest == bundle.manifest
    assert unpacked(tmp_path / "out") == unpacked(bundle.folder)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"more.bin": MUCH}, "other files, or sizes, than its manifest lists"),
        ({".bundle/more.bin": MUCH}, "other files, or sizes, than its manifest lists"),
        ({"model.onnx": MUCH}, "other files, or sizes, than its manifest lists"),
        ({".bundle/tokenizer.json": MUCH}, "other files, or sizes, than its manifest lists"),
        ({"../outside": b"a"}, "other files, or sizes, than its manifest lists"),
        ({"manifest.json": MUCH}, "its manifest.json has 20000000 bytes, at most 16777216"),
        ({"manifest.sig": MUCH}, "its manifest.sig has 20000000 bytes, at most 16777216"),
        ({"manifest.json": None}, "it has no model/manifest.json"),
        ({"manifest.json": b"{}"}, "is no valid bundle"),
    ],
)
def test_what_its_manifest_does_not_list_is_not_unpacked(
    bundle: Bundle, tmp_path: Path, other: Mapping[str, bytes | None], said: str
) -> None:
    archive = packed(bundle, tmp_path / "model.zip", other)
    with pytest.raises((*DAMAGED_ARCHIVE, Failure), match=said):
        unpack_registered(archive, tmp_path / "out")
    assert unpacked(tmp_path / "out") <= unpacked(bundle.folder)
    assert not (tmp_path / "outside").exists()


def test_one_that_says_less_of_itself_than_it_holds(bundle: Bundle, tmp_path: Path) -> None:
    name, size = "model.onnx", (bundle.model_folder / "model.onnx").stat().st_size
    archive = packed(bundle, tmp_path / "model.zip", {name: MUCH})
    whole = archive.read_bytes()
    at = whole.index(b"PK\1\2")
    said = whole[at:].replace(len(MUCH).to_bytes(4, "little"), size.to_bytes(4, "little"), 1)
    archive.write_bytes(whole[:at] + said)
    with pytest.raises(zipfile.BadZipFile, match="CRC"):
        unpack_registered(archive, tmp_path / "out")
    assert unpacked(tmp_path / "out") <= unpacked(bundle.folder)


def test_with_trusted_keys_nothing_is_unpacked_that_nobody_signed(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key("me", tmp_path)[1]
    monkeypatch.setenv(TRUSTED_KEYS_VARIABLE, key.public)
    with pytest.raises(Failure, match=r"manifest\.json is not signed"):
        unpack_registered(packed(bundle, tmp_path / "model.zip"), tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["model", "manifest.json"]
    sign_bundle(bundle.folder, key)
    unpack_registered(packed(open_bundle(bundle.folder), tmp_path / "b.zip"), tmp_path / "signed")
    open_bundle(tmp_path / "signed")


def test_a_rollback_says_whose_archive_it_is(bundle: Bundle, tmp_path: Path) -> None:
    archive = packed(bundle, tmp_path / "model.zip", {"more.bin": MUCH})
    api: Any = SimpleNamespace(
        download=lambda uri, target: target.write_bytes(archive.read_bytes())
    )
    registry = ModelRegistry(api, "0" * 32)
    with (
        pytest.raises(Failure, match="model m is no bundle that 'deploy' registered: it holds"),
        registry.fetched(Registered("m", 2, "file:///model.zip", ())),
    ):
        pass
