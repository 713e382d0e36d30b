"""What a stack costs that nobody asks: `python -m benchmarks.studies.idle --state FOLDER`.

Processor time of each part over the seconds, of a core, and its memory at their end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.report.tables import table
from benchmarks.servers.stack_processes import stack_processes
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.supervision import Supervisor

_MB = 1e6


@dataclass(frozen=True)
class PartUse:
    """Of a part's processes: `cpu_s` since they began; `rss` and, where a page that several have
    counts once, `pss`, in bytes now; `largest` is the RSS of the largest."""

    cpu_s: float
    rss: int
    pss: int
    largest: int


def use_of(processes: Iterable[psutil.Process]) -> PartUse:
    cpu, rss, pss = 0.0, [0], 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times, memory = process.cpu_times(), process.memory_full_info()
            cpu, pss = cpu + times.user + times.system, pss + memory.pss
            rss.append(memory.rss)
    return PartUse(cpu, sum(rss), pss, max(rss))


def _parts_now(state: Path) -> Mapping[str, PartUse]:
    return {name: use_of(processes) for name, processes in stack_processes(state).items()}


def measure(state: Path, seconds: float) -> dict[str, dict[str, float]]:
    """By part of the stack at `state`: percent of a core over the seconds, and MB at their end."""
    before, began = _parts_now(state), time.monotonic()
    time.sleep(seconds)
    after, took = _parts_now(state), time.monotonic() - began
    return {
        name: {
            "core_percent": 100 * (used.cpu_s - before[name].cpu_s) / took,
            "rss_mb": used.rss / _MB, "pss_mb": used.pss / _MB, "largest_mb": used.largest / _MB,
        }
        for name, used in after.items() if name in before
    }  # fmt: skip


def idle_table(found: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        (
            name, f"{used['core_percent']:.2f}", f"{used['rss_mb']:.0f}", f"{used['pss_mb']:.0f}",
            f"{used['largest_mb']:.0f}",
        )
        for name, used in found.items()
    ]  # fmt: skip
    head = ("part", "of a core, %", "resident, MB", "PSS, MB", "largest process, MB")
    return table(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=Path(".stack"))
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    state, load = options.state.resolve(), os.getloadavg()[0]
    try:
        if not Supervisor(state).is_up():
            sys.exit(
                f"error: no stack runs in {options.state}; name the folder of one with --state"
            )
        found = idle_table(measure(state, options.seconds))
    except Failure as failure:
        sys.exit(f"error: {failure}")
    sys.stdout.write(f"{options.seconds:g} s, load {load:.2f} before\n\n{found}\n")


if __name__ == "__main__":
    main()
