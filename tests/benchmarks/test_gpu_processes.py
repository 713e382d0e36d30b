"""A step's process: its time, what it leaves behind, and that the steps after it are run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.servers import machine as measured_machine
from benchmarks.studies.gpu import needs, steps
from benchmarks.studies.gpu.step_process import StepProcess
from benchmarks.studies.gpu.steps import DONE, FAILED, MISSING, Step, run_all, run_step
from tests.engine.triton_server import wait_until
from transformer_serving.desk.local.leftovers import lives


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
    # A zombie has ended: whoever has to reap it may never do so.
    wait_until(lambda: not lives(child), 60)


# It keeps what `run` was labelled until `rm` of its id.
DOCKER = """#!/bin/sh
case $1 in
run) while [ "$1" != --label ]; do shift; done; echo "label=$2" > "$THERE";;
ps) [ -e "$THERE" ] && [ "$(cat "$THERE")" = "$5" ] && echo 3f0c;;
rm) [ "$3" = 3f0c ] && rm "$THERE";;
esac
"""
KILLED = """
import os, signal, subprocess
from pathlib import Path
from benchmarks.studies.gpu.stacks import container_command
subprocess.run(container_command(Path("models"), "one", 1, 2), check=True)
assert Path(os.environ["THERE"]).exists()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_container_ends_with_the_step_that_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, docker = tmp_path / "there", tmp_path / "docker"
    docker.write_text(DOCKER)
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("THERE", str(there))
    process = StepProcess([sys.executable, "-c", KILLED])
    assert process.wait(60) == -signal.SIGKILL
    assert there.exists()
    # Another step's end leaves it alone.
    StepProcess([sys.executable, "-c", ""]).end(60)
    assert there.exists()
    assert process.end(60) == -signal.SIGKILL
    assert not there.exists()


def test_a_step_whose_process_ends_does_not_cost_the_next_one(tmp_path: Path) -> None:
    """No process knows the first, so that it stores nothing."""
    unknown, machine = Step("unknown", "none", (), print), steps.chosen(["machine"])[0]
    first, second = run_all([unknown, machine], tmp_path, quiet, again=True)
    assert (first["state"], second["state"]) == (FAILED, DONE)
    assert first["values"] == "its process ended with 2 and stored nothing"
    assert "lacks" in second["values"]


def test_a_step_that_is_broken_off_leaves_what_was_stored_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = steps.chosen(["machine"])
    [before] = run_all(machine, tmp_path, quiet, again=True)

    wait = StepProcess.wait

    def broken_off(self: StepProcess, limit_s: float) -> int | None:
        if limit_s > steps.LIMIT_S:
            raise KeyboardInterrupt
        return wait(self, limit_s)

    with monkeypatch.context() as patch:
        patch.setattr(StepProcess, "wait", broken_off)
        with pytest.raises(KeyboardInterrupt):
            run_all(machine, tmp_path, quiet, again=True)
    assert steps.stored(machine[0], tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["machine.json"]


def test_a_need_that_cannot_be_asked_for_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise OSError("libcudnn.so.9: cannot open shared object file")

    monkeypatch.setitem(needs.ALL, "torch", broken)
    first, second = run_all(
        [Step("one", "a step", ("torch",), print), *steps.chosen(["machine"])],
        tmp_path, quiet, again=True,
    )  # fmt: skip
    assert (first["state"], second["state"]) == (MISSING, DONE)
    assert "libcudnn" in first["lacks"][0]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise OSError('libcudnn.so.9: not there')", "this one fails: OSError: libcudnn"),
        ("import time; time.sleep(600)", "does not say within 1 s"),
        ("print('2.11.0+cpu', False, 'built')", "this is 2.11.0+cpu, built"),
    ],
)
def test_torch_is_asked_from_outside(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_ASK_TORCH", code)
    monkeypatch.setattr(needs, "_LIBRARY_S", 1 if "sleep" in code else 60)
    assert said in str(needs.torch_cuda())
    monkeypatch.setattr(needs, "_ASK_TORCH", "print('2.11.0', True, 'built')")
    monkeypatch.setattr(needs, "_LIBRARY_S", 60)
    assert needs.torch_cuda() is None


def test_a_torch_that_sees_no_gpu_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says in passing is a warning, which nobody hears."""
    (tmp_path / "torch.py").write_text(
        "from types import SimpleNamespace\n"
        "def init():\n"
        "    raise RuntimeError('The NVIDIA driver\\non your system is too old')\n"
        "cuda = SimpleNamespace(is_available=lambda: False, init=init)\n"
        "version, __version__ = SimpleNamespace(cuda='13.0'), '2.13.0+cu130'\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert needs.torch_cuda() == (
        "a torch that sees the GPU: this is 2.13.0+cu130, built for CUDA 13.0; "
        "RuntimeError: The NVIDIA driver on your system is too old"
    )


def test_onnx_runtime_is_asked_to_open_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """This one is built for processors alone; what it says of CUDA is of no import or graph."""
    assert "CUDAExecutionProvider cannot be loaded" in str(needs.onnx_cuda())
    monkeypatch.setattr(needs, "_ASK_ONNX", "print('opened')")
    assert needs.onnx_cuda() is None


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


def test_figures_and_pages_are_no_change_of_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("benchmarks/results/gpu/machine.json", "docs/gpu.md", "preprocess/queue/pace.py")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("before")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(measured_machine, "ROOT", tmp_path)
    clean = measured_machine.commit()
    assert len(clean) == 12
    changed = []
    for name in names:
        (tmp_path / name).write_text("after")
        changed.append(measured_machine.commit())
    assert changed == [clean, clean, f"{clean}+"]
