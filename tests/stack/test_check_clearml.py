"""scripts/check_clearml.sh against the embedded stack, with its inference app."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.stack.conftest import ROOT, Stack

pytestmark = [pytest.mark.long, pytest.mark.by_hand]

# The SDK's reports fork while another of its threads starts git; now and then the fork holds git's
# pipe and both wait without end.
NO_FORKS = "sdk.development.report_use_subprocess: false\n"


def test_every_step_works(plain: Stack, tmp_path: Path) -> None:
    configuration = tmp_path / "clearml.conf"
    configuration.write_text(NO_FORKS)
    environment = {"PYTHON": sys.executable, "CLEARML_CONFIG_FILE": str(configuration)}
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "check_clearml.sh")],
        env={**plain.environment(), **environment},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "all steps worked"
    steps = ["train", "read", "auto-update", "pipeline", "served", "remove"]
    assert [line.split()[1] for line in said[1:-1]] == steps
