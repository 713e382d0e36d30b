"""An altered bundle never keeps its number, whoever hashes its manifest anew."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.engine.serving import FIELDS, write_sealed
from tests.stack.small_bundles import Parts, hash_anew, write_small
from transformer_serving.contract import identity
from transformer_serving.contract.errors import ContractError
from transformer_serving.contract.identity import (
    check_preprocess,
    code_digest,
    data_of,
    model_parts,
    stated_version,
)
from transformer_serving.contract.manifest import entry_of, read_manifest
from transformer_serving.desk.bundle.folder import open_bundle
from transformer_serving.desk.failure import Failure
from transformer_serving.engine.controller.control_plane.served import Served
from transformer_serving.engine.controller.control_plane.verification import verify

SERVED = Served("e", "e", "m", "py_code", "ONNX", FIELDS, "", "")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_small(tmp_path / "bundle").folder


def code(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "preprocess.py"
        path.write_bytes(path.read_bytes() + text.encode())

    return change


def head(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "preprocess.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


def limits(folder: Path) -> None:
    path = folder / "endpoint.json"
    path.write_text(path.read_text().replace('"max_texts": 100', '"max_texts": 101'))


def model(folder: Path) -> None:
    path = folder / "model" / "config.pbtxt"
    path.write_text(path.read_text() + "# another\n")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (code("import os\n"), "preprocess.py is not the one of bundle"),
        (code("\n"), "preprocess.py is not the one of bundle"),
        (code('\nDATA = ""\n'), "no preprocess file of a bundle"),
        (head("# task: ", "import os\n# task: "), "is not the one of bundle"),
        (head("# task: ", "# signature: a\rimport os\n# task: "), "is not the one of bundle"),
        (head("# bundle-version: ", "# bundle-version: 1"), "is not the one of bundle"),
        (limits, "carries another 'endpoint.json'"),
        (model, "preprocess.py is not the one of bundle"),
    ],
)
def test_an_altered_bundle_is_refused_at_the_desk(
    bundle: Path, change: Callable[[Path], None], said: str
) -> None:
    open_bundle(bundle)
    change(bundle)
    hash_anew(bundle)
    with pytest.raises(Failure, match=said) as caught:
        open_bundle(bundle)
    assert "convert again" in str(caught.value)


def test_another_bundles_number_is_refused(bundle: Path, tmp_path: Path) -> None:
    other = write_small(tmp_path / "other", Parts(scale=2.0))
    for name in ("preprocess.py", "endpoint.json"):
        (bundle / name).write_bytes((other.folder / name).read_bytes())
    path = bundle / "model" / "manifest.json"
    fields = {name: getattr(other.manifest, name) for name in ("bundle_version", "bundle_hash")}
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    hash_anew(bundle)
    with pytest.raises(Failure, match="is not the one of bundle"):
        open_bundle(bundle)


def test_the_controller_computes_it_from_the_model_and_the_artifact(tmp_path: Path) -> None:
    folder, number, raw = write_sealed(tmp_path)
    verified = verify(SERVED, folder, raw)
    assert (verified.number, verified.bundle_version) == (number, number)
    with pytest.raises(ContractError, match="is not the one of bundle"):
        verify(SERVED, folder, raw + b"import os\n")
    model(tmp_path)
    manifest = read_manifest((folder / "manifest.json").read_bytes())
    files = tuple(entry_of(tmp_path, tmp_path / entry.path) for entry in manifest.files)
    (folder / "manifest.json").write_text(dataclasses.replace(manifest, files=files).to_json())
    with pytest.raises(ContractError, match="is not the one of bundle"):
        verify(SERVED, folder, raw)


def test_a_preprocess_file_proves_its_number_alone(bundle: Path) -> None:
    raw = (bundle / "preprocess.py").read_bytes()
    manifest = read_manifest((bundle / "model" / "manifest.json").read_bytes())
    alone, together = check_preprocess(raw), check_preprocess(raw, model_parts(manifest.files))
    assert alone == together
    assert alone.bundle_version == manifest.bundle_version == stated_version(raw)


@settings(max_examples=100)
@given(st.binary(max_size=60), st.binary(max_size=60), st.integers(0, 10**13))
def test_no_bytes_raise_anything_but_a_contract_error(
    before: bytes, data: bytes, number: int
) -> None:
    raw = before + b"\n# bundle-version: %d\n" % number + b'DATA = "' + data + b'"\n'
    stated_version(raw)
    with pytest.raises(ContractError):
        check_preprocess(raw)


def carried(archive: bytes) -> bytes:
    """A preprocess.py with this archive."""
    return b'# bundle-version: 1\nDATA = "' + base64.b64encode(archive) + b'"\n'


def archive_of(method: int, content: bytes) -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w", method) as archive:
            for name in ("endpoint.json", "tokenizer.json", "parts.json"):
                archive.writestr(name, content)
        return file.getvalue()


@settings(max_examples=300)
@given(
    st.sampled_from(
        [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    ),
    st.binary(max_size=80),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_damaged_archive_raises_nothing_but_a_contract_error(
    method: int, content: bytes, damage: list[tuple[int, int]]
) -> None:
    archive = bytearray(archive_of(method, content))
    for at, value in damage:
        archive[at % len(archive)] = value
    with pytest.raises(ContractError):
        check_preprocess(carried(bytes(archive)))


def test_a_broken_stream_and_an_encrypted_member_are_damage() -> None:
    archive = archive_of(zipfile.ZIP_DEFLATED, b"{}" * 40)
    first = archive.index(b"endpoint.json") + len("endpoint.json")
    broken = archive[:first] + b"\xff" * 4 + archive[first + 4 :]
    flags = archive.index(b"PK\x01\x02") + 8
    encrypted = bytearray(archive)
    encrypted[flags] |= 1
    encrypted[archive.index(b"PK\x03\x04") + 6] |= 1
    for one in (broken, bytes(encrypted)):
        with pytest.raises(ContractError, match="damaged archive"):
            check_preprocess(carried(one))


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "names",
    [
        ("endpoint.json", "tokenizer.json", "parts.json", "tokenizer.json"),
        ("endpoint.json", "tokenizer.json", "parts.json", "more.json"),
        ("endpoint.json", "tokenizer.json"),
    ],
    ids=["twice", "more", "missing"],
)
def test_an_archive_of_other_files_than_a_bundles_is_refused(
    bundle: Path, names: tuple[str, ...]
) -> None:
    """Also where those that are read are the bundle's own: who reads another copy reads it as
    proven."""
    raw = (bundle / "preprocess.py").read_bytes()
    parts = {**data_of(raw), "more.json": b"{}"}
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name in names:
                archive.writestr(name, parts[name])
        data = base64.b64encode(file.getvalue())
    changed = re.sub(rb'DATA = "[^"]*"', b'DATA = "%s"' % data, raw)
    with pytest.raises(ContractError, match="carries other files than a bundle's"):
        check_preprocess(changed)


def test_an_archive_of_more_than_any_tokenizer_is_not_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = carried(archive_of(zipfile.ZIP_DEFLATED, b"0" * 401))
    monkeypatch.setattr(identity, "MAX_DATA_BYTES", 3 * 400)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(ContractError, match="carries more than 1200 bytes"):
        check_preprocess(large)


def test_one_that_says_to_be_small_is_not_unpacked_further() -> None:
    size = (16 << 20) + 0x123456
    packed = archive_of(zipfile.ZIP_DEFLATED, bytes(size))
    stated = struct.pack("<I", size)
    # Before each file and in the list of them all.
    assert packed.count(stated) == 6
    tracemalloc.start()
    try:
        with pytest.raises(ContractError, match="damaged archive"):
            check_preprocess(carried(packed.replace(stated, struct.pack("<I", 40))))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < size / 4


def test_a_signature_is_no_code(bundle: Path) -> None:
    raw = (bundle / "preprocess.py").read_bytes()
    line = b"# signature: me " + b"A" * 86 + b"==\n"
    first, rest = raw.split(b"\n", 1)
    assert code_digest(first + b"\n" + line + rest) == code_digest(raw)
    assert code_digest(raw + line) != code_digest(raw)


@pytest.mark.parametrize("place", ["", "model/", "model"])
def test_symbolic_links_inside_a_bundle_are_refused(
    bundle: Path, tmp_path: Path, place: str
) -> None:
    if place == "model":
        (bundle / "model").rename(tmp_path / "elsewhere")
        (bundle / "model").symlink_to(tmp_path / "elsewhere")
    else:
        secret = tmp_path / "secret"
        secret.write_text("of somebody else")
        (bundle / f"{place}linked").symlink_to(secret)
    with pytest.raises(Failure, match="is a symbolic link; put the file itself there") as caught:
        open_bundle(bundle)
    assert caught.value.exit_code == 2
