"""What `make up` leaves behind, with nobody asking: each part's processor time and memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.runs.session import Session
from benchmarks.servers.site import stack_command
from benchmarks.studies import idle
from transformer_serving.desk.local.free_ports import free_row
from transformer_serving.desk.step_report import StepReport

# What a start leaves to do: rounds of golden requests, and machine figures for ClearML.
_SETTLE_S = 60.0
_PORTS = 6


@dataclass(frozen=True)
class DemoStack:
    """A stack of its own with the demo; by part, over `seconds`."""

    seconds: float

    def __call__(self, session: Session, report: StepReport) -> dict[str, dict[str, float]]:
        state = session.site.work / "demo-stack"
        report(f"the demo's stack with nobody asking, {self.seconds:.0f} s")
        stack_command("up", state, "--demo", "--port-base", str(free_row(_PORTS)))
        try:
            time.sleep(_SETTLE_S)
            return idle.measure(state, self.seconds)
        finally:
            stack_command("down", state)
