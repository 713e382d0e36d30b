"""A flame graph of a process that is busy in one function."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.servers.process import Unusable
from benchmarks.studies import flames

BUSY = """
def turning():
    number = 0
    print("turning", flush=True)
    while True:
        number += 1

turning()
"""


@pytest.fixture
def busy() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into any process (ptrace_scope)")
@pytest.mark.parametrize("native", [False, True])
def test_the_picture_names_the_busy_function_and_no_path(
    busy: int, tmp_path: Path, native: bool
) -> None:
    path = tmp_path / "busy.svg"
    flames.look(busy, 1, native, path)
    svg = path.read_text("utf-8")
    assert str(path) in svg
    svg = flames.titled(svg, "busy, 1 client")
    assert ">busy, 1 client<" in svg
    assert "turning" in svg
    assert str(path) not in svg


def test_a_process_that_is_not_there_is_said_to_be_unusable(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="py-spy: "):
        flames.look(2**22 + 1, 1, False, tmp_path / "none.svg")
