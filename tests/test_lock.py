"""What `make lock` writes of what pip says, and by which Python; made they are by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.lock import OLDEST, ROOT, check_python, pins

FROZEN = """
cuda-bindings==12.9.4
numpy==2.4.0
nvidia-cublas-cu12==12.8.4.1
nvidia-pytriton==0.7.0
pip==26.0
setuptools==80.9.0
torch==2.13.0+cpu
transformer-serving @ file:///here
triton==3.6.0
tritonclient==2.73.0
"""


def test_a_lock_has_no_part_of_cuda() -> None:
    """torch's own build brings them along; it is installed for processors."""
    kept = {"numpy==2.4.0", "nvidia-pytriton==0.7.0", "torch==2.13.0", "tritonclient==2.73.0"}
    assert pins(FROZEN, ["torch"]) == kept
    assert pins(FROZEN, ["torch", "setuptools"]) == {*kept, "setuptools==80.9.0"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "requirements").glob("*.lock")), ids=lambda p: p.name
)
def test_no_lock_that_is_there_has_one(path: Path) -> None:
    rows = "\n".join(row for row in path.read_text("utf-8").splitlines() if not row.startswith("#"))
    assert pins(rows, ["pip", "setuptools"]) == {
        row.split("+")[0] for row in rows.splitlines() if "==" in row
    }


def test_the_oldest_python_alone_makes_locks() -> None:
    check_python(OLDEST)
    with pytest.raises(SystemExit, match="made by Python 3.11, this is 3.12: make lock PYTHON=p"):
        check_python((3, 12))


def test_it_runs_without_anything_installed() -> None:
    command = [
        sys.executable,
        "-I",
        "-c",
        f"import runpy; runpy.run_path('{ROOT}/scripts/lock.py')",
    ]
    subprocess.run(command, check=True)
