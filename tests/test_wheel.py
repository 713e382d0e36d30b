"""What the wheel installs: two names, and a command line that no file lying about gets into."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from transformer_serving.gateway.page.files import FILES

ROOT = Path(__file__).parent.parent
# What a person may have lying beside a bundle: names that the kit's packages have or had.
STRAY = ("contract", "engine", "gateway", "preprocess", "desk", "transformer_serving")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns("__pycache__")
    for package in ("preprocess", "transformer_serving"):
        shutil.copytree(ROOT / package, folder / "source" / package, ignore=left_out)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "source")
    pip(
        sys.executable, "wheel", "--no-build-isolation", "--wheel-dir", str(folder),
        str(folder / "source"),
    )  # fmt: skip
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command line of an environment that has the wheel, and what it needs, but no checkout."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout[:-1]
    )
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "transformer_serving" not in path.name and path.suffix != ".pth":
            (packages / path.name).symlink_to(path)
    pip(str(python), "install", str(wheel))
    return environment / "bin" / "transformer-serving"


def pip(python: str, *arguments: str) -> None:
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run(
        [python, "-m", "pip", *arguments, *options], check=True, capture_output=True, timeout=180
    )


def test_only_two_names_are_installed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "preprocess", "transformer_serving"
    }  # fmt: skip


def test_the_pages_are_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {f"transformer_serving/gateway/page/{name}" for name in FILES.values()} <= names


@pytest.mark.parametrize("arguments", ["--help", "versions --json", "convert --help", "doctor"])
def test_the_command_line_runs_beside_files_of_such_names(
    command: Path, tmp_path: Path, arguments: str
) -> None:
    for name in STRAY:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('stray {name}.py was imported')")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [command, *arguments.split()], cwd=tmp_path, env=kept, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert "stray" not in done.stdout + done.stderr
    assert done.stdout


def test_the_modules_that_run_as_programs_are_found(command: Path, tmp_path: Path) -> None:
    """Those that the stack and the images start by their names."""
    python = command.with_name("python")
    for module in ("transformer_serving.gateway", "transformer_serving.engine.controller"):
        done = subprocess.run(
            [python, "-P", "-m", module, "--help"],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.stdout.startswith("usage:"), done.stderr
