"""One command at a time starts or stops a stack: two would make two services and two sets of keys.

Tested by tests/local/test_turn.py.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.step_report import StepReport

# An `up` that succeeds or gives up has done so by then.
_WAIT_S = 180.0


@contextmanager
def own_turn(state: Path, report: StepReport) -> Iterator[None]:
    """Waits for who has it. Raises Failure naming a process that keeps it for minutes.

    The lock is the kernel's, so that of a process that was killed is free at once.
    """
    with (state / "up.lock").open("a+") as lock:
        if not _taken(lock):
            report(f"waiting for {_holder(lock)}")
            deadline = time.monotonic() + _WAIT_S
            while not _taken(lock):
                if time.monotonic() > deadline:
                    raise Failure(
                        f"{_holder(lock)} starts or stops the stack in {state} and does not end; "
                        "end it, then try again"
                    )
                time.sleep(0.1)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _taken(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: IO[str]) -> str:
    lock.seek(0)
    return f"process {lock.read() or '?'}"
