"""What the tests of a folder share ends with the last of them, not with the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHARED = """
import pathlib

import pytest

TOLD = pathlib.Path(__file__).parent.parent / "told"


def tell(what):
    with TOLD.open("a") as told:
        told.write(what + " ")


@pytest.fixture(scope="session")
def server():
    tell("server")
    yield tell
    tell("/server")


@pytest.fixture(scope="session")
def client(server):
    yield server
    server("/client")
"""
ASKS = """
def test_asks({fixture}):
    {fixture}("{name}")
"""


def test_it_ends_where_another_folder_is_next_and_begins_anew(tmp_path: Path) -> None:
    """A folder below is no other one; what was made of it ends before it."""
    # As the real one it lies below the root, where pytest tells a conftest less.
    folder = tmp_path / "all"
    folder.mkdir()
    (folder / "conftest.py").write_text(
        "import pathlib, pytest\nfrom tests.conftest import pytest_configure\n"
        "@pytest.fixture\ndef tell():\n    told = pathlib.Path(__file__).parent / 'told'\n"
        "    return lambda what: told.open('a').write(what + ' ')\n"
    )
    asked = [
        ("gateway/test_a.py", "client"), ("gateway/below/test_b.py", "server"),
        ("other/test_c.py", "tell"), ("gateway/test_d.py", "server"),
    ]  # fmt: skip
    for name, fixture in asked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(ASKS.format(fixture=fixture, name=Path(name).stem[-1]))
    (folder / "gateway" / "conftest.py").write_text(SHARED)
    own = ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    own += ["-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *own, *(f"all/{name}" for name, _ in asked)],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    told = "server a b /client /server c server d /server"
    assert (folder / "told").read_text().split() == told.split()
