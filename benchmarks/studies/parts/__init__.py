"""What no load by rounds can say: starts, memory, neighbours. `python -m benchmarks budgets`."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.runs.session import Part
from benchmarks.studies.parts import cold_start, starts
from benchmarks.studies.parts.demo_stack import DemoStack
from benchmarks.studies.parts.neighbour import Neighbour
from benchmarks.studies.parts.worker_memory import WorkerMemory

# s; the shortest over which ClearML's own rounds even out.
_IDLE_S = 60.0


def measured(load_s: float, *, clone: bool) -> Mapping[str, Part]:
    """The parts by the name under which each is stored; `restart` ends the others' stack."""
    return {
        "neighbour": Neighbour(),
        "cold_start": cold_start.measure,
        "worker_memory": WorkerMemory(load_s),
        "restart": starts.restart,
        "demo_stack": DemoStack(_IDLE_S),
        "fresh_clone": starts.FreshClone(clone),
    }
