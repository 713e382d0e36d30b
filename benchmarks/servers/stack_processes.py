"""The processes of a stack that runs, by the part that they are of."""

from __future__ import annotations

from pathlib import Path

import psutil

from benchmarks.servers.process import tree
from transformer_serving.desk.local.parts import PARTS
from transformer_serving.desk.local.supervision import Supervisor

SUPERVISOR = "supervisord"


def stack_processes(state: Path) -> dict[str, list[psutil.Process]]:
    """The supervisor alone, and each part that runs with all below it, in the table's order.
    Raises SilentSupervisor."""
    own = tree(int((state / "supervisor.pid").read_text("utf-8")))[:1]
    parts = Supervisor(state).processes()
    pids = {part.name: parts[part.name].pid for part in PARTS if part.name in parts}
    return {SUPERVISOR: own} | {name: tree(pid) for name, pid in pids.items() if pid}
