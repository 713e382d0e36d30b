"""What `make up` leaves behind: each part's processor time and memory with nobody asking, and a
worker's memory after more than it could answer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs.session import Session
from benchmarks.servers import texts
from benchmarks.servers.process import tree
from benchmarks.servers.site import DEMO_STACK, stack_command
from benchmarks.studies import idle
from transformer_serving.desk.bench import load as generator
from transformer_serving.desk.bench.connection import Address
from transformer_serving.desk.demo import CLASSIFIER
from transformer_serving.desk.local.free_ports import free_row
from transformer_serving.desk.local.supervision import Supervisor
from transformer_serving.desk.step_report import StepReport

# What a start leaves to do: rounds of golden requests, and machine figures for ClearML.
_SETTLE_S = 60.0
_PORTS = 6
# Some 42,000 tokens that wait: more than two cores answer in time.
_CALLERS, _WORDS = 150, 144
_LOAD_S = 25.0
_GIVEN_BACK_S = 30.0
_INFERENCE = "inference"


@dataclass(frozen=True)
class DemoStack:
    """A stack of its own with the demo; by part, over `seconds`.

    The worker's `after_load` is how many times its memory of before it has half a minute after a
    load.
    """

    seconds: float

    def __call__(self, session: Session, report: StepReport) -> dict[str, dict[str, float]]:
        state = session.site.work / DEMO_STACK
        report(f"the demo's stack with nobody asking, {self.seconds:.0f} s")
        base = free_row(_PORTS)
        try:
            # Also of one that fails or is ended something may run.
            stack_command("up", state, "--demo", "--port-base", str(base))
            time.sleep(_SETTLE_S)
            found = idle.measure(state, self.seconds)
            report(f"{_CALLERS} callers for {_LOAD_S:.0f} s")
            workers = _workers(state)
            _load(Address.of(f"http://127.0.0.1:{base}/serve/{CLASSIFIER}"))
            time.sleep(_GIVEN_BACK_S)
            if _workers(state) != workers:
                report("a worker ended under the load: a new one's memory says nothing")
                return found
            before = found[_INFERENCE]["largest_mb"]
            after = idle.measure(state, 0.0)[_INFERENCE]["largest_mb"]
            found[_INFERENCE]["after_load"] = after / before
            return found
        finally:
            stack_command("down", state)


def _load(address: Address) -> None:
    text = " ".join(["station"] * _WORDS)
    payload = generator.Payload("long", texts.json_text([text, text]), 2)
    generator.run(address, [payload], generator.Closed(_CALLERS, _LOAD_S))


def _workers(state: Path) -> set[int]:
    """Of the part that serves, every process."""
    process = Supervisor(state).processes()[_INFERENCE]
    assert process.pid is not None
    return {one.pid for one in tree(process.pid)}
