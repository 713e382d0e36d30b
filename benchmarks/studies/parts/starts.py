"""How long the embedded stack takes: from a fresh clone, and again on what is there."""

from __future__ import annotations

import shutil
import subprocess
import time
from dataclasses import dataclass

from benchmarks.runs.session import Session
from benchmarks.servers.process import Unusable
from benchmarks.servers.site import OURS, ROOT, stack_command
from transformer_serving.desk.deploy.golden import ask
from transformer_serving.desk.local.free_ports import free_row
from transformer_serving.desk.step_report import StepReport

_ROUNDS = 3
_LIMIT_S = 120.0


def restart(session: Session, report: StepReport) -> list[float]:
    """Seconds from `up` on a stopped stack to the answer of an endpoint that it served before."""
    site = session.site
    found = []
    for number in range(min(_ROUNDS, session.runner.plan.rounds)):
        report(f"the stack again, {number + 1} of {_ROUNDS}")
        stack_command("down", site.state)
        began = time.monotonic()
        stack_command("up", site.state, "--port-base", str(site.port_base))
        url = f"http://127.0.0.1:{site.port_base}/serve/{OURS}"
        while (reply := ask(url, {"text": "a short text"})).status != 200:
            if time.monotonic() > began + _LIMIT_S:
                raise Unusable(f"{url} did not answer after `up`: {reply.status}")
            time.sleep(0.05)
        found.append(time.monotonic() - began)
    return found


@dataclass(frozen=True)
class FreshClone:
    """`make up` in a clone below the run's folder, where `wanted`; pip's cache as it is."""

    wanted: bool

    def __call__(self, session: Session, report: StepReport) -> list[float]:
        if not self.wanted:
            return []
        clone = session.site.work / "clone"
        report("make up in a fresh clone")
        _run(["git", "clone", "--quiet", str(ROOT), str(clone)])
        try:
            began = time.monotonic()
            # The same as `make up`, on free ports: the first is its rule for the environment.
            _run(["make", "-C", str(clone), ".venv/.desk"])
            program = str(clone / ".venv" / "bin" / "transformer-serving")
            state = str(clone / ".stack")
            ports = ["--port-base", str(free_row(4)), "--state", state]
            try:
                _run([program, "up", "--demo", *ports], str(clone))
                return [time.monotonic() - began]
            finally:
                _run([program, "down", "--state", state], str(clone))
        finally:
            shutil.rmtree(clone, ignore_errors=True)


def _run(command: list[str], folder: str | None = None) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        raise Unusable(f"{' '.join(command[:3])}: {lines[-1]}")
