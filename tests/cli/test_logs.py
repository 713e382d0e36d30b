"""`logs` of a stack's folder; those of a stack that runs are in tests/stack/test_commands.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from transformer_serving.desk.local.record import Ports, StackRecord, save_record


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "stack"
    save_record(state, StackRecord(Ports(), "access", "secret", "the-service"))
    (state / "logs").mkdir()
    return state


def logs(state: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "transformer_serving.desk.cli", "logs", *arguments,
         "--state", str(state)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_part_without_a_log_is_not_said_to_be_all_of_them(state: Path) -> None:
    assert f"error: no logs in {state}/logs yet" in logs(state, "prometheus").stderr
    (state / "logs" / "triton.log").write_text("a line\n")
    done = logs(state, "prometheus")
    said = f"error: prometheus has no log in {state}/logs; triton has one\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert logs(state, "triton").stdout == "a line\n"


def test_lines_that_a_rotation_put_aside_are_printed_before(state: Path) -> None:
    """A busy log is put aside every few minutes, and holds a few lines for a while."""
    lines = [f"line {number}\n" for number in range(9)]
    for name, part in (("", lines[7:]), (".1", lines[3:7]), (".2", lines[:3])):
        (state / "logs" / f"triton.log{name}").write_text("".join(part))
    for number in (0, 2, 5, 8, 50):
        printed = logs(state, "triton", "-n", str(number)).stdout
        assert printed == "".join(lines[-number:] if number else [])
    (state / "logs" / "inference.log").write_text("its own\n")
    printed = logs(state, "-n", "3").stdout
    assert f"==> {state}/logs/triton.log.1 <==\nline 6\n" in printed
    assert f"==> {state}/logs/triton.log <==\nline 7\nline 8\n" in printed


def test_what_cannot_be_printed_ends_it_with_an_error(state: Path) -> None:
    (state / "logs" / "triton.log").mkdir()
    assert logs(state, "triton").returncode == 1
