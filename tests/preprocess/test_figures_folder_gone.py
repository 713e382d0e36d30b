"""A figures' folder that vanishes under a running worker: requests matter more than counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = """
import shutil, sys
from preprocess.stats import STAGES, EndpointFigures
folder, remade = sys.argv[1], sys.argv[2]
shutil.rmtree(folder)
if remade == "no":
    open(folder, "w").close()
late = EndpointFigures("after")
late.request(200, 1, 5, dict.fromkeys(STAGES, 0.1))
late.call(1, 5, 3)
"""


@pytest.mark.parametrize("remade", ["yes", "no"])
def test_a_worker_whose_folder_went_counts_on_or_not_at_all(tmp_path: Path, remade: str) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    subprocess.run(
        [sys.executable, "-c", WORKER, str(folder), remade],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}, check=True,
    )  # fmt: skip
    assert folder.is_dir() == (remade == "yes")
