"""What a stack costs that nobody asks: `python -m benchmarks.studies.idle --state FOLDER`.

Processor time of each part over the seconds, of a core, and its memory at their end: resident, and
PSS, which counts a page that processes share once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.report.tables import table
from benchmarks.servers.process import tree
from transformer_serving.desk.local.parts import PARTS
from transformer_serving.desk.local.supervision import Supervisor

_MIB = 2**20


@dataclass(frozen=True)
class PartUse:
    """`cpu_s` since the processes began; `rss` and `pss` in bytes, now."""

    cpu_s: float
    rss: int
    pss: int


def parts_now(state: Path) -> Mapping[str, PartUse]:
    """Each part that runs, with all its processes, and the supervisor of them."""
    found = Supervisor(state).processes()
    own = int((state / "supervisor.pid").read_text("utf-8"))
    used = {"supervisord": _use([psutil.Process(own)])}
    for part in PARTS:
        process = found.get(part.name)
        if process is not None and process.pid is not None:
            used[part.name] = _use(tree(process.pid))
    return used


def _use(processes: list[psutil.Process]) -> PartUse:
    cpu, rss, pss = 0.0, 0, 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            memory = process.memory_full_info()
            cpu, rss, pss = cpu + times.user + times.system, rss + memory.rss, pss + memory.pss
    return PartUse(cpu, rss, pss)


def measure(state: Path, seconds: float) -> str:
    """A table: a part a row."""
    before, began = parts_now(state), time.monotonic()
    time.sleep(seconds)
    after, took = parts_now(state), time.monotonic() - began
    rows = [
        (
            name, f"{100 * (used.cpu_s - before[name].cpu_s) / took:.2f}",
            f"{used.rss / _MIB:.0f}", f"{used.pss / _MIB:.0f}",
        )
        for name, used in after.items() if name in before
    ]  # fmt: skip
    return table(("part", "of a core, %", "resident, MiB", "PSS, MiB"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=Path(".stack"))
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    text = measure(options.state.resolve(), options.seconds)
    sys.stdout.write(f"load {load:.2f} before; {options.seconds:g} s\n\n{text}\n")


if __name__ == "__main__":
    main()
