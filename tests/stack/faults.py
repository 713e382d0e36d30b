"""What can happen to the processes of a stack, done to a running one under load, and what was seen.

Used by the tests with a few faults, and by the long run (reliability.py) with all of them.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from tests.stack.conftest import Stack
from tests.stack.load import NO_ANSWER, PAUSE_S, Log, Seen, load
from tests.stack.small_bundles import TEXT
from transformer_serving.contract.errors import KINDS
from transformer_serving.engine.orphans import STUB

# The rows of the error table that say "not now"; everything else but 200 is a fault of ours.
NOT_NOW = {(kind.status, kind.code) for kind in KINDS.values() if kind.status in (503, 504)}
BODY = {"text": TEXT}
# Far above the seconds it takes; how many they are stands in docs/reliability.md.
BOUND_S = 180.0


@dataclass(frozen=True)
class Fault:
    """A signal to one process; `part` 'engine' is a model's process inside Triton."""

    part: str
    how: signal.Signals

    def __str__(self) -> str:
        return f"{'kill -9' if self.how == signal.SIGKILL else self.how.name} of {self.part}"


PARTS = ("control-plane", "triton", "controller", "inference", "engine")
HOW = (signal.SIGKILL, signal.SIGSTOP)
SINGLE = tuple(Fault(part, how) for part in PARTS for how in HOW)
# Both sides of a pair differ; a dead Triton has no engine process to be hit beside it.
PAIRS = tuple(
    (one, other)
    for one, other in itertools.combinations(SINGLE, 2)
    if one.part != other.part and {one.part, other.part} != {"triton", "engine"}
)


@dataclass(frozen=True)
class Outcome:
    """`recovery_s` from the fault until every part is well and the endpoint answers as before."""

    faults: tuple[Fault, ...]
    answers: Counter[int]
    recovery_s: float
    longest_s: float

    def __str__(self) -> str:
        return " + ".join(map(str, self.faults))

    def seen(self) -> str:
        """The statuses that clients got, most frequent first."""
        words = {NO_ANSWER: "connection refused or closed"}
        return ", ".join(
            f"{count} x {words.get(status, status)}" for status, count in self.answers.most_common()
        )


def strike(
    stack: Stack,
    endpoint: str,
    faults: Sequence[Fault],
    clients: int = 16,
    pause_s: float = PAUSE_S,
) -> Outcome:
    """Do the faults at once under load. Raises AssertionError for an answer that may not be."""
    good = stack.seen(endpoint, BODY)
    assert good.status == 200, good
    with load(stack.base, endpoint, BODY, clients, pause_s) as log:
        stack.until(lambda: log.total() > 5 * clients, "the load runs")
        pids = {fault: pid_of(stack, fault.part) for fault in faults}
        begun = time.monotonic()
        for fault, pid in pids.items():
            os.kill(pid, fault.how)
        wait_until_well(stack, endpoint, good, set(pids.values()))
        recovery_s = time.monotonic() - begun
    check(log, good, faults)
    return Outcome(tuple(faults), log.statuses(), recovery_s, log.longest_s)


def pid_of(stack: Stack, part: str) -> int:
    name = "triton" if part == "engine" else part
    pid: int = stack.parts()[name]["pid"]
    if part != "engine":
        return pid
    family = psutil.Process(pid).children(recursive=True)
    return next(int(p.pid) for p in family if is_engine(p) and runs(p.pid))


def runs(pid: int) -> bool:
    """Triton leaves a dead engine process as a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_engine(process: psutil.Process) -> bool:
    """One model's process inside Triton."""
    return process.name().startswith(STUB)


def wait_until_well(stack: Stack, endpoint: str, good: Seen, old: set[int]) -> None:
    """Until no process of `old` is left, every part is well and answers are as before."""
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        # Its own short question first: status asks every part, the hanging ones too.
        if not any(map(runs, old)) and stack.seen(endpoint, BODY) == good:
            status = stack.status()
            # The supervisor may not have noticed yet.
            new = not old & {part["pid"] for part in status["parts"]}
            well = new and all(part["health"] == "ok" for part in status["parts"])
            rows = {row["endpoint"]: row["ready"] for row in status["endpoints"]}
            if well and rows.get(endpoint):
                return
        time.sleep(0.1)
    raise AssertionError(f"not well within {BOUND_S:.0f} s: {stack.status()}")


def check(log: Log, good: Seen, faults: Sequence[Fault]) -> None:
    """Only the right answer, or the table's 503 and 504; and nobody waits without end.

    The worker's own end is the one thing that a client sees as a broken connection.
    """
    refused = any(fault.part == "inference" for fault in faults)
    for seen in log.except_(good):
        fine = (seen.status, seen.text) in NOT_NOW or (refused and seen.status == NO_ANSWER)
        assert fine, f"{seen} after {', '.join(map(str, faults))}: {log.counts}"
    assert not log.hung, log.counts
