"""Make the kit's environment out of parcels, without network; this file lies beside them.

    python3 PARCELS/unpack.py --repository CHECKOUT [--torch-of PYTHON] [--environment DIR]

torch is the machine's own: that of the Python which runs this, or of PYTHON. Needs nothing but
Python's standard library. Every parcel is compared with its checksum before anything is written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

MANIFEST = "parcels.json"
SCHEMA = 1
# As in the Makefile.
MADE_OF = ("requirements/desk.lock", "requirements/carried.lock", "pyproject.toml")
_BLOCK = 1 << 20
_SITE = (
    "import sysconfig; print(sysconfig.get_path('platlib')); print(sysconfig.get_path('purelib'))"
)
_TORCH = "import torch; print(torch.__version__)"


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except OSError:
        raise SystemExit(f"error: '{MANIFEST}' is missing in {folder}; copy it again") from None
    except ValueError:
        raise SystemExit(f"error: '{MANIFEST}' is damaged; copy it again") from None
    if found.get("schema") != SCHEMA:
        raise SystemExit(f"error: '{MANIFEST}' is of another release of the kit; pack again")
    return found


def check(folder: Path, manifest: dict[str, Any]) -> None:
    """Raises SystemExit that names every parcel which is missing or damaged."""
    faults = []
    for row in manifest["parcels"]:
        path = folder / row["name"]
        if not path.is_file():
            faults.append(f"parcel '{row['name']}' is missing")
        elif path.stat().st_size != row["size"]:
            faults.append(
                f"parcel '{row['name']}' has {path.stat().st_size} bytes of {row['size']}"
            )
        elif sha256(path) != row["sha256"]:
            faults.append(f"parcel '{row['name']}' is damaged: its checksum is another one")
    if faults:
        raise SystemExit(f"error: {'; '.join(faults)}; copy them again")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def extract(folder: Path, manifest: dict[str, Any], target: Path) -> None:
    """The wheels, out of the parcels one behind the other."""
    with tempfile.TemporaryFile() as whole:
        for row in manifest["parcels"]:
            with (folder / row["name"]).open("rb") as part:
                _copy(part, whole)
        whole.seek(0)
        with tarfile.open(fileobj=whole, mode="r:") as archive:
            # Not extractall, whose filters Python has from 3.11.4 on alone.
            for member in archive:
                wheel = archive.extractfile(member)
                if wheel is not None:
                    target.mkdir(exist_ok=True)
                    with (target / Path(member.name).name).open("wb") as file:
                        _copy(wheel, file)


def _copy(source: IO[bytes], target: IO[bytes]) -> None:
    while block := source.read(_BLOCK):
        target.write(block)


def make_environment(target: Path, torch_of: str | None) -> Path:
    """A venv that sees the torch of that Python, of this one for None; its Python."""
    if torch_of is None and sys.prefix != sys.base_prefix:
        # What a new environment sees of the system is not what this one holds.
        torch_of = sys.executable
    see = ["--system-site-packages"] if torch_of is None else []
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", *see, str(target)])
    python = target / "bin" / "python"
    if torch_of is not None:
        folders = dict.fromkeys(_run([torch_of, "-c", _SITE]).split("\n"))
        own = Path(_run([str(python), "-c", _SITE]).split("\n")[0])
        # Behind the environment's own packages, which therefore win over the machine's.
        (own / "machine-torch.pth").write_text("".join(f"{one}\n" for one in folders), "utf-8")
    return python


def install(python: Path, wheels: Path, repository: Path) -> None:
    # By this Python's pip: some distributions give no new environment one of its own.
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check",
           "install", "--quiet", "--no-index", "--no-deps"]  # fmt: skip
    # What the machine has of another version is hidden, not changed. What is not imported needs no
    # compiling, and the rest is compiled by what imports it.
    _run([*pip, "--no-compile", "--ignore-installed", *map(str, sorted(wheels.glob("*.whl")))])
    _run([*pip, "--no-build-isolation", "--editable", str(repository)])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise SystemExit(f"error: {' '.join(command[:4])}: {last[-1]}")
    return done.stdout.strip()


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the kit's environment, without network.")
    parser.add_argument("--repository", type=Path, default=Path.cwd(), help="the kit's checkout")
    parser.add_argument("--torch-of", metavar="PYTHON", help="the Python that has torch")
    parser.add_argument("--environment", type=Path, help="the folder of it; REPOSITORY/.venv")
    options = parser.parse_args()
    folder = Path(__file__).resolve().parent
    manifest = read_manifest(folder)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != manifest["python"]:
        raise SystemExit(
            f"error: the wheels are for Python {manifest['python']}, and this is {here}; run it "
            f"with python{manifest['python']}, or pack with PYTHON_VERSION={here}"
        )
    if not (options.repository / "pyproject.toml").is_file():
        raise SystemExit(f"error: {options.repository} is no checkout; name it: --repository DIR")
    say(f"checking {len(manifest['parcels'])} parcels")
    check(folder, manifest)
    target = options.environment or options.repository / ".venv"
    python = make_environment(target, options.torch_of)
    with tempfile.TemporaryDirectory(dir=target) as wheels:
        say(f"unpacking {len(manifest['wheels'])} wheels")
        extract(folder, manifest, Path(wheels))
        say(f"installing into {target}")
        install(python, Path(wheels), options.repository.resolve())
    # By this make finds the environment there, and made of the same.
    made_of = (options.repository / name for name in MADE_OF)
    (target / ".desk").write_bytes(b"".join(file.read_bytes() for file in made_of))
    torch = _run([str(python), "-c", _TORCH])
    if torch.partition("+")[0] != manifest["torch"]:
        say(
            f"torch is {torch}, the kit's pin {manifest['torch']}: programs are exported by it here"
        )
    say(f"torch {torch}; next: make check-gpu")
    return 0


if __name__ == "__main__":
    sys.exit(main())
