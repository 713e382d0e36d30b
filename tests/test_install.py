"""scripts/install.py in an environment of its own, with packages of this file and the real pip."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

INSTALL = Path(__file__).parent.parent / "scripts" / "install.py"
NAMES = ("ash", "beech", "cedar", "elm", "fir", "gum")
# What no lock names, and who wants it.
PLATFORMS, UNWANTED = "hazel", "ivy"
REQUIRES = {"cedar": PLATFORMS, "willow": UNWANTED}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    for name in (*NAMES, "willow", PLATFORMS, UNWANTED):
        _wheel(folder, name, REQUIRES.get(name))
    return folder


def _wheel(folder: Path, name: str, requires: str | None) -> None:
    info = f"{name}-1.0.dist-info"
    wanted = f"Requires-Dist: {requires}\n" if requires else ""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{wanted}"
    wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{name}.py,,", *(f"{info}/{file},," for file in ("METADATA", "WHEEL", "RECORD"))]
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as packed:
        packed.writestr(f"{name}.py", "")
        packed.writestr(f"{info}/METADATA", metadata)
        packed.writestr(f"{info}/WHEEL", wheel)
        packed.writestr(f"{info}/RECORD", "\n".join(rows))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    return folder / "bin" / "python"


def _install(
    python: Path, wheels: Path, lock: Path, *arguments: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PIP_")},
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
    }
    return subprocess.run(
        [python, INSTALL, lock, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _importable(python: Path, name: str) -> bool:
    return subprocess.run([python, "-c", f"import {name}"], capture_output=True).returncode == 0


def test_all_are_there_and_what_they_want_beside(
    python: Path, wheels: Path, tmp_path: Path
) -> None:
    lock, alone = tmp_path / "a.lock", tmp_path / "b.lock"
    lock.write_text("# A comment.\n" + "\n".join(f"{name}==1.0" for name in NAMES) + "\n")
    alone.write_text("willow==1.0\n")
    for _ in range(2):
        done = _install(python, wheels, lock, "--alone", str(alone))
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "packages: 7 of 7 fetched, 7 installed"
    assert all(_importable(python, name) for name in (*NAMES, "willow", PLATFORMS))
    assert not _importable(python, UNWANTED)


def test_a_package_that_is_not_to_be_had_is_named(
    python: Path, wheels: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text("ash==1.0\nbeech==1.0\noak==2.0\n")
    done = _install(python, wheels, lock)
    assert done.returncode == 1
    assert "No matching distribution found for oak==2.0" in done.stderr
    commands = [one.info["cmdline"] or [""] for one in psutil.process_iter(["cmdline"])]
    assert not [command for command in commands if command[0] == str(python)]
