"""Each part killed in turn comes back; `down` leaves nothing, also after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.stack.conftest import CLI, ROOT, Stack, free_port_base
from transformer_serving.local.supervision import leftovers

SEED = {"text": "This is a ClearML example to show how Triton binaries are deployed."}
BOUND_S = 40  # far above the seconds it takes; no speed is asserted here


def pid_of(stack: Stack, name: str) -> int:
    return next(row["pid"] for row in stack.json("status")["parts"] if row["name"] == name)


def wait_until_well(stack: Stack, old_pid: int, name: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        status, _ = stack.post("transformer_model", SEED)
        done = subprocess.run(
            [CLI, "status", "--state", str(stack.state)], capture_output=True, check=False
        )
        if status == 200 and done.returncode == 0 and pid_of(stack, name) != old_pid:
            return
        time.sleep(0.2)
    pytest.fail(f"{name} did not come back within {BOUND_S} s")


@pytest.mark.parametrize("name", ["control-plane", "triton", "controller", "inference"])
def test_a_killed_part_comes_back(stack: Stack, name: str) -> None:
    pid = pid_of(stack, name)
    os.kill(pid, signal.SIGKILL)
    if name in ("control-plane", "controller"):
        assert stack.post("transformer_model", SEED)[0] == 200  # requests do not need them
    wait_until_well(stack, pid, name)


def test_triton_gone_is_503_with_retry_after(stack: Stack) -> None:
    pid = pid_of(stack, "triton")
    os.kill(pid, signal.SIGKILL)
    status, body = stack.post("transformer_model", SEED)
    assert (status, body["code"]) == (503, "unavailable")
    wait_until_well(stack, pid, "triton")


def test_down_after_the_supervisor_crashed_leaves_nothing(tmp_path: Path) -> None:
    stack = Stack(tmp_path, free_port_base())
    stack.run("up", "--port-base", str(stack.base))
    supervisor = int((tmp_path / "supervisor.pid").read_text())
    parts = [psutil.Process(row["pid"]) for row in stack.json("status")["parts"]]
    os.kill(supervisor, signal.SIGKILL)
    stack.run("down")
    assert not list(leftovers(tmp_path))
    assert not any(part.is_running() for part in parts)


def test_down_and_up_again_serves_what_was_deployed(tmp_path: Path) -> None:
    stack = Stack(tmp_path, free_port_base())
    bundle = str(ROOT / "build" / "demo" / "transformer_model")
    stack.run("up", "--port-base", str(stack.base))
    stack.run("deploy", bundle, "--endpoint", "kept")
    stack.run("down")
    assert not list(leftovers(tmp_path))
    stack.run("up")
    try:
        deadline = time.monotonic() + BOUND_S
        while stack.post("kept", SEED)[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert stack.post("kept", SEED)[0] == 200
    finally:
        stack.run("down")
