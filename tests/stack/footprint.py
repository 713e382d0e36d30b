"""What a stack takes of the machine: threads, file descriptors, shared memory, memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from transformer_serving.engine.orphans import STUB

_LOOKS = 20

if TYPE_CHECKING:
    from tests.stack.conftest import Stack


@dataclass(frozen=True)
class Footprint:
    """Sums over the worker, Triton with its engine processes, and the controller.

    `shared` counts Triton's areas in /dev/shm; the megabytes are resident ones. `descriptors`
    leaves the engine processes out: each inherits what Triton had open when it started, so those
    which started later have more.
    """

    threads: int
    descriptors: int
    shared: int
    worker_mb: float
    triton_mb: float
    controller_mb: float

    def __str__(self) -> str:
        return (
            f"{self.threads} threads, {self.descriptors} descriptors, {self.shared} shared areas, "
            f"worker {self.worker_mb:.0f} MB, Triton {self.triton_mb:.0f} MB, "
            f"controller {self.controller_mb:.0f} MB"
        )


def footprint(stack: Stack) -> Footprint:
    """Looked at again where an engine's process ended in the middle of it."""
    for _ in range(_LOOKS):
        try:
            return _seen(stack)
        except (psutil.NoSuchProcess, FileNotFoundError):
            continue
    raise AssertionError(f"in each of {_LOOKS} looks a process ended")


def _seen(stack: Stack) -> Footprint:
    families = {}
    for name in ("inference", "triton", "controller"):
        main = psutil.Process(stack.parts()[name]["pid"])
        families[name] = [main, *main.children(recursive=True)]
    every = [process for family in families.values() for process in family]
    megabytes = {
        name: sum(process.memory_info().rss for process in family) / 2**20
        for name, family in families.items()
    }
    return Footprint(
        threads=sum(process.num_threads() for process in every),
        descriptors=sum(one.num_fds() for one in every if not one.name().startswith(STUB)),
        shared=sum(_areas(process) for process in families["triton"]),
        worker_mb=megabytes["inference"],
        triton_mb=megabytes["triton"],
        controller_mb=megabytes["controller"],
    )


def _areas(process: psutil.Process) -> int:
    maps = Path(f"/proc/{process.pid}/maps").read_text("utf-8", "replace")
    return len({line.split()[-1] for line in maps.splitlines() if "/dev/shm/" in line})
