"""Renew requirements/*.lock: install pyproject.toml's ranges in a fresh environment and freeze.

`pip freeze` of what was really installed together is the lock. Run it with the oldest Python that
is supported, so that every pin exists for all of them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).parent.parent
HEAD = "# Made by `make lock`; change pyproject.toml instead.\n"


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        desk = install(python, [*project["dependencies"], *extras["convert"], "setuptools"])
        everything = install(python, extras["dev"])
    write("desk.lock", desk)
    write("dev.lock", everything - desk)


def install(python: Path, wanted: list[str]) -> set[str]:
    """Install and return every pin that the environment now holds."""
    subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    command = [python, "-m", "pip", "freeze", "--all"]
    frozen = subprocess.run(command, check=True, capture_output=True, text=True)
    rows = {row.split("+")[0] for row in frozen.stdout.split() if "==" in row}
    return {row for row in rows if not row.startswith("pip==")}


def write(name: str, rows: set[str]) -> None:
    path = ROOT / "requirements" / name
    temporary = path.with_suffix(".new")
    temporary.write_text(HEAD + "".join(f"{row}\n" for row in sorted(rows, key=str.lower)), "utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    main()
