"""What a killed run leaves is found by who comes next, and a run that goes on is left alone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.cli.stack import down
from transformer_serving.desk.tune.killed_run import end_what_is_left, only_run, own_state


@pytest.fixture
def part(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Of the stack that a run had of its own."""
    own = own_state(tmp_path)
    own.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: str(own)}) as process:
        yield process
        process.kill()


def test_where_there_was_none_nothing_is_made(tmp_path: Path) -> None:
    assert not end_what_is_left(tmp_path)
    own_state(tmp_path).mkdir(parents=True)
    assert not end_what_is_left(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tune"]


def test_it_is_ended_unless_a_run_goes_on(tmp_path: Path, part: subprocess.Popen[bytes]) -> None:
    with only_run(tmp_path) as ours:
        assert ours
        assert not end_what_is_left(tmp_path)
    assert part.poll() is None
    assert end_what_is_left(tmp_path)
    assert part.wait(20) < 0


def test_down_ends_it(tmp_path: Path, part: subprocess.Popen[bytes]) -> None:
    """Else nothing says why the machine is slow: it is no part of the stack."""
    done = CliRunner().invoke(down, ["--state", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "ended the stack that a killed tune had left" in done.output
    assert part.wait(20) < 0
