"""A step's process: its time, what it leaves behind, and that the steps after it are run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.studies.gpu import steps
from benchmarks.studies.gpu.step_process import StepProcess
from benchmarks.studies.gpu.steps import DONE, FAILED, Step, run_all, run_step


def quiet(line: str) -> None:
    """Nothing is said in a test."""


def pass_the_limit() -> None:
    """In a place where what a signal raises is lost, as in a callback of uvloop or httptools."""
    with contextlib.suppress(BaseException):
        os.kill(os.getpid(), signal.SIGALRM)


def test_a_limit_whose_moment_was_lost_is_raised_by_the_next_report(tmp_path: Path) -> None:
    seen: list[str] = []

    def run(report: Any) -> None:
        try:
            pass_the_limit()
            seen.append("goes on")
            report("round 2")
            seen.append("round 2")
        finally:
            # What closes may fail and say so, and is not broken off.
            try:
                raise OSError
            except OSError:
                report("closing")
            seen.append("closed")

    found = run_step(Step("one", "a step", (), run), tmp_path, quiet)
    assert (found["state"], seen) == (FAILED, ["goes on", "closed"])
    assert found["values"] == "it took more than 480 s"


# It says that it is there; SIGTERM does not end it, and no more what it started in a session.
STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 2:
    child = subprocess.Popen(
        [sys.executable, __file__, sys.argv[1], "child"], start_new_session=True
    )
    child.wait()
with open(sys.argv[1], "w") as there:
    there.write(str(os.getpid()))
signal.pause()
"""


def test_a_process_that_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    script, there = tmp_path / "stubborn.py", tmp_path / "there"
    script.write_text(STUBBORN)
    os.mkfifo(there)
    process = StepProcess([sys.executable, str(script), str(there)])
    child = psutil.Process(int(there.read_text()))
    assert process.wait(0.01) is None
    assert process.end(0.1) == -signal.SIGKILL
    child.wait()
    assert not child.is_running()


def test_a_step_whose_process_ends_does_not_cost_the_next_one(tmp_path: Path) -> None:
    """No process knows the first, so that it stores nothing."""
    unknown, machine = Step("unknown", "none", (), print), steps.chosen(["machine"])[0]
    first, second = run_all([unknown, machine], tmp_path, quiet, again=True)
    assert (first["state"], second["state"]) == (FAILED, DONE)
    assert first["values"] == "its process ended with 2 and stored nothing"
    assert "lacks" in second["values"]


def test_named_steps_have_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        steps, "_in_a_process",
        lambda step, folder, report: {"step": step.name, "state": f"by {step.name}'s process"},
    )  # fmt: skip
    arguments = ["--out", str(tmp_path), "--no-page", "--json"]
    done = CliRunner().invoke(main, ["check-gpu", *arguments, "--step", "machine"])
    assert json.loads(done.stdout) == {"machine": "by machine's process"}
