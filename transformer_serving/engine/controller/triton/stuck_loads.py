"""Ends a Triton in which a load is stuck, so that its supervisor starts another.

Triton runs a Python backend's models in child processes. Triton 2.51 does not notice when one dies
before it has answered for the first time: the model stays LOADING, and neither its load call nor
any other for the model returns. The dead child is left as a zombie, which is the sign. How long a
load takes is none: a slow one has a living process, or none at all where the backend is native.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from transformer_serving.engine.controller.triton.backend_processes import BackendProcesses

# Of a process that dies later in its load Triton takes notice: the load then fails after 2.3 s.
NOTICE_S = 5.0


@dataclass
class Load:
    """A load that goes on. `before` are processes older than it, living ones too; `died` is set
    once.
    """

    model: str
    before: frozenset[int]
    dead_since: float | None = None
    died: bool = False


class StuckLoads:
    """Watches the loads of the Triton whose processes those are."""

    def __init__(self, processes: BackendProcesses) -> None:
        self._processes = processes
        self._lock = threading.Lock()
        self._loads: list[Load] = []
        self._owners: dict[int, str] = {}
        # Left by a load of the controller before this one: what is loading may be waiting for it.
        self._inherited = processes.look()[1]

    @contextlib.contextmanager
    def watched(self, model: str) -> Iterator[Load]:
        """The block, which loads the model, is watched until it ends."""
        with self._lock:
            # Of what lives, a version of the same model may die beside a load that goes well.
            living, dead = self._look()
            load = Load(model, (living | dead) - self._inherited)
            self._loads.append(load)
        try:
            yield load
        finally:
            with self._lock:
                self._loads.remove(load)

    def end(self) -> list[str]:
        """Kill Triton if loads are stuck; their models. Without a load this costs nothing."""
        with self._lock:
            loads = [load for load in self._loads if not load.died]
            if not loads:
                return []
            _, dead = self._look()
            stuck = [load for load in loads if self._is_stuck(load, dead)]
            for load in stuck:
                load.died = True
            if stuck:
                self._processes.kill_server()
            return [load.model for load in stuck]

    def _look(self) -> tuple[frozenset[int], frozenset[int]]:
        """The living processes and the dead; what the living load is remembered for when they are
        dead."""
        living, dead = self._processes.look()
        seen = dead.union(living)
        kept = {pid: owner for pid, owner in self._owners.items() if pid in seen}
        # Of one that is just ending no command line is left, and with it no model's name.
        self._owners = kept | {pid: model for pid, (model, _) in living.items() if model}
        return frozenset(living), dead

    def _is_stuck(self, load: Load, dead: frozenset[int]) -> bool:
        """A process that died before it was seen alive may be that of any load."""
        owners = {self._owners.get(pid, load.model) for pid in dead - load.before}
        if load.model not in owners:
            load.dead_since = None
            return False
        now = time.monotonic()
        load.dead_since = load.dead_since or now
        return now - load.dead_since >= NOTICE_S
