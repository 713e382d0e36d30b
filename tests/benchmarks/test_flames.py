"""A flame graph of a process that is busy in one function."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.servers.process import Unusable
from benchmarks.studies import flames
from transformer_serving.gateway.server.worker_process import MODULE

BUSY = """
def turning():
    number = 0
    print("turning", flush=True)
    while True:
        number += 1

turning()
"""

IDLE = "import time; print('idle', flush=True); time.sleep(60)"


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
    assert list(tmp_path.iterdir()) == [path]
    svg = path.read_text("utf-8")
    assert str(tmp_path) in svg
    svg = flames.titled(svg, "busy, 1 client")
    assert ">busy, 1 client<" in svg
    assert "turning" in svg
    assert str(tmp_path) not in svg


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into any process (ptrace_scope)")
def test_a_process_that_does_nothing_leaves_the_picture_of_before(tmp_path: Path) -> None:
    path = tmp_path / "idle.svg"
    path.write_text("of before")
    with subprocess.Popen([sys.executable, "-c", IDLE], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        try:
            with pytest.raises(Unusable, match="py-spy: Error: .*No stack counts"):
                flames.look(process.pid, 1, False, path)
        finally:
            process.kill()
    assert [path] == list(tmp_path.iterdir())
    assert path.read_text() == "of before"


def test_a_worker_is_looked_at_and_not_its_supervisor(busy: int) -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as supervisor,
        subprocess.Popen(
            ["sh", "-c", "echo begun; sleep 60; true", MODULE], stdout=subprocess.PIPE
        ) as worker,
    ):
        assert worker.stdout is not None
        # Before that it may have no command line yet.
        assert worker.stdout.readline()
        try:
            processes = list(map(psutil.Process, (supervisor.pid, busy, worker.pid)))
            assert flames.worker(processes).pid == worker.pid
            with pytest.raises(Unusable, match="no worker"):
                flames.worker(processes[:2])
        finally:
            supervisor.kill()
            for child in psutil.Process(worker.pid).children():
                child.kill()
            worker.kill()


def test_a_process_that_is_not_there_is_said_to_be_unusable(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="py-spy: "):
        flames.look(2**22 + 1, 1, False, tmp_path / "none.svg")
