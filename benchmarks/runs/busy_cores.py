"""How busy the machine is before the first round: a server may work on after its first answer.

What it loads or searches then it takes from whoever is measured beside it, and from itself.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.runs.processor_time import process_seconds
from transformer_serving.desk.step_report import StepReport

# Cores, however many there are: what idle servers take does not grow with them, and a thread that
# works keeps one busy. An idle stack takes 0.04 of one and an app's process 0.01, so those of
# `make bench` together some 0.12 and those of `make bench-all` some 0.25.
MOST_BUSY = 0.4
# Longer than a poll of a server takes, which is no work that goes on.
LOOK_S = 2.0
_IDLE, _WAITS_FOR_DISK = 3, 4

# The run's own processes by the name that it calls them.
Named = Mapping[str, Iterable[psutil.Process]]


@dataclass(frozen=True)
class Busy:
    """Cores that were at work over a short while: all of them, those of the run's own processes,
    and those of whoever took the most."""

    cores: float
    own: float
    most: str
    most_cores: float

    @property
    def idle(self) -> bool:
        return self.cores <= MOST_BUSY

    def stored(self) -> dict[str, Any]:
        values = asdict(self)
        return {
            name: round(one, 2) if isinstance(one, float) else one for name, one in values.items()
        }

    def __str__(self) -> str:
        return (
            f"{self.cores:.2f} cores are busy, {self.own:.2f} with what this run started; "
            f"{self.most} takes the most, {self.most_cores:.2f}"
        )


def wait_until_idle(look: Callable[[], Busy], report: StepReport, within_s: float) -> Busy:
    """Look until the machine is idle or the time is up; the last look. An idle one is not told."""
    deadline = time.monotonic() + within_s
    found = look()
    if not found.idle:
        report(f"{found}: waiting up to {within_s:.0f} s for an idle machine")
    while not found.idle:
        if time.monotonic() >= deadline:
            report(f"{found}, still: the rounds begin beside it")
            break
        found = look()
    return found


def look(named: Callable[[], Named]) -> Busy:
    """How busy the machine is for LOOK_S. `named` is asked afterwards: what starts meanwhile has
    its name too."""
    before, begun = _spent(), time.monotonic()
    whole = _busy_s()
    time.sleep(LOOK_S)
    whole = _busy_s() - whole
    after, took = _spent(), time.monotonic() - begun
    owners = {one.pid: name for name, processes in named().items() for one in processes}
    cores = {pid: (spent - before.get(pid, 0.0)) / took for pid, spent in after.items()}
    return busy_of(cores, owners, whole / took)


def busy_of(cores: Mapping[int, float], owners: Mapping[int, str], whole: float) -> Busy:
    """From each process's cores, by id, and the machine's: it counts also what ended meanwhile."""
    shares: dict[str, float] = defaultdict(float)
    own = 0.0
    for pid, share in cores.items():
        if share > 0:
            shares[owners.get(pid) or _others(pid)] += share
            own += share if pid in owners else 0.0
    most, most_cores = max(shares.items(), key=lambda pair: pair[1], default=("nobody", 0.0))
    # A sandbox may keep no account of the machine's.
    return Busy(max(whole, own), own, most, most_cores)


def told(stored: Mapping[str, Any] | None) -> str:
    """For a table's stamp: nothing where the machine was idle, or nobody looked."""
    if stored is None or (busy := Busy(**stored)).idle:
        return ""
    return (
        f"{busy.cores:.2f} cores busy when the rounds began, the most with {busy.most} "
        f"({busy.most_cores:.2f})"
    )


def _spent() -> dict[int, float]:
    return {pid: process_seconds(pid) for pid in psutil.pids()}


def _others(pid: int) -> str:
    """By its name: a crowd of compilers is one thing that is in the way."""
    with contextlib.suppress(psutil.Error):
        return f"{psutil.Process(pid).name()} of somebody else"
    return "somebody else"


def _busy_s() -> float:
    """Processor seconds of the cores that this process may use, since the machine's start."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        lines = Path("/proc/stat").read_text("utf-8").splitlines()
    except OSError:
        return 0.0
    busy = 0
    for line in lines:
        name, *rest = line.split()
        if name in usable:
            # What follows them, of guests, is in the first of them too.
            ticks = [int(one) for one in rest[:8]]
            busy += sum(ticks) - ticks[_IDLE] - ticks[_WAITS_FOR_DISK]
    return busy / os.sysconf("SC_CLK_TCK")
