"""Renew requirements/*.lock: install pyproject.toml's ranges in a fresh environment and freeze.

`pip freeze` of what was really installed together is the lock. The oldest Python that is supported
runs it, so that every pin exists for all of them; another is refused: make lock PYTHON=python3.11.
CUDA's wheels are left out, which torch's build for processors does without. What goes into the
Triton image must run on that image's own Python, so its lock is made with that one: the python3.N
of versions.toml has to be on PATH.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).parent.parent
OLDEST = (3, 11)
# CUDA and what belongs to it, by the beginning of a name.
CUDA = ("nvidia-", "triton", "cuda-")
# Of these beginnings, and no part of CUDA.
NO_CUDA = ("tritonclient", "nvidia-pytriton")
HEAD = "# Made by `make lock`; change pyproject.toml instead.\n"


def triton_python(versions: str) -> str:
    """The command of the Triton image's Python; of the pin only its minor version matters here."""
    major, minor, *_ = tomllib.loads(versions)["image"]["python"].split(".")
    return f"python{major}.{minor}"


def check_python(version: tuple[int, int]) -> None:
    """Raises SystemExit for any but the oldest."""
    if version != OLDEST:
        oldest, found = (".".join(map(str, one)) for one in (OLDEST, version))
        sys.exit(
            f"error: the locks are made by Python {oldest}, this is {found}: "
            f"make lock PYTHON=python{oldest}"
        )


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    check_python(sys.version_info[:2])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    with tempfile.TemporaryDirectory() as folder:
        python = environment(sys.executable, Path(folder))
        desk = install(python, [*project["dependencies"], *extras["convert"], "setuptools"])
        everything = install(python, extras["dev"])
    write("desk.lock", desk)
    write("dev.lock", everything - desk)
    # Extras of pyproject.toml, each the whole content of one image, and the Python that it has.
    images = {
        "image-inference": sys.executable,
        "image-control-plane": sys.executable,
        "image-triton": triton_python((ROOT / "versions.toml").read_text("utf-8")),
    }
    for extra, interpreter in images.items():
        write_image(extra, interpreter, extras[extra])


def write_image(extra: str, interpreter: str, wanted: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(f"{extra}.lock", install(environment(interpreter, Path(folder)), wanted))


def environment(interpreter: str, folder: Path) -> Path:
    subprocess.run([interpreter, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def install(python: Path, wanted: list[str]) -> set[str]:
    """Install and return every pin that the environment now holds."""
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *wanted], check=True)
    command = [str(python), "-m", "pip", "freeze", "--all"]
    frozen = subprocess.run(command, check=True, capture_output=True, text=True)
    return pins(frozen.stdout, wanted)


def pins(frozen: str, wanted: list[str]) -> set[str]:
    """The rows of a `pip freeze` that belong into a lock."""
    rows = {row.split("+")[0] for row in frozen.split() if "==" in row}
    # What every fresh environment has.
    unasked = {"pip", "setuptools"} - set(wanted)
    return {row for row in rows if row.split("==")[0] not in unasked and not is_cuda(row)}


def is_cuda(row: str) -> bool:
    """Whether it is a part of CUDA that torch brings along."""
    return row.lower().startswith(CUDA) and not row.startswith(NO_CUDA)


def write(name: str, rows: set[str]) -> None:
    path = ROOT / "requirements" / name
    temporary = path.with_suffix(".new")
    temporary.write_text(HEAD + "".join(f"{row}\n" for row in sorted(rows, key=str.lower)), "utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main()
