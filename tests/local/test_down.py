"""`down` where there is no stack, or none whose record can be read."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.cli import main
from transformer_serving.desk.local.record import (
    FORMAT,
    Ports,
    new_record,
    require_record,
    save_record,
)
from transformer_serving.desk.local.sockets import sockets_of


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Short, as a socket's path must be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield


def test_down_says_where_there_is_no_stack(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    done = CliRunner().invoke(main, ["down", "--state", str(nowhere)])
    assert done.exit_code == 0
    said = "".join(done.output.split("\n"))
    assert f"no stack in {nowhere}" in said
    assert "stays" not in said
    done = CliRunner().invoke(main, ["down", "--state", str(nowhere), "--json"])
    assert json.loads(done.stdout) == {"state": str(nowhere), "running": False, "swept": 0}


@pytest.mark.parametrize(
    "text", ["{", "[]", json.dumps({"format": FORMAT + 1})], ids=["broken", "list", "newer"]
)
def test_down_needs_no_record_that_can_be_read(tmp_path: Path, text: str) -> None:
    """What runs is found by its mark: all of it is ended, Triton's sockets gone with it."""
    save_record(tmp_path, new_record(tmp_path, Ports()))
    sockets = sockets_of(tmp_path)
    Path(require_record(tmp_path).triton.http.removeprefix("unix:")).touch()
    (tmp_path / "stack.json").write_text(text)
    part = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: str(tmp_path)})
    try:
        done = CliRunner().invoke(main, ["down", "--state", str(tmp_path)])
        assert done.exit_code == 0, done.output
        assert "the stack is down; ended 1 processes" in done.output
        assert part.wait(20) != 0
    finally:
        part.kill()
        part.wait()
    assert not sockets.exists()
