"""scripts/check_clearml.sh against the embedded stack, with its inference app."""

from __future__ import annotations

import subprocess
import sys

from tests.stack.conftest import ROOT, Stack


def test_every_step_works(plain: Stack) -> None:
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "check_clearml.sh")],
        env={**plain.environment(), "PYTHON": sys.executable},
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "all steps worked"
    steps = ["train", "read", "auto-update", "pipeline", "served", "remove"]
    assert [line.split()[1] for line in said[1:-1]] == steps
