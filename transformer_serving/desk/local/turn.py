"""One command at a time starts or stops a stack: two would make two services and two sets of keys.

Tested by tests/local/test_turn.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.file_lock import taken
from transformer_serving.desk.step_report import StepReport

# An `up` that succeeds or gives up has done so by then: it waits twice for parts that go on
# starting (local/stack.py), and once for a command of clearml-serving (clearml_tools/cli.py).
_WAIT_S = 720.0
# Who stops the stack goes on then, as whoever has the turn may itself wait for what is stopped.
_INSISTS_S = 10.0


@contextmanager
def own_turn(state: Path, report: StepReport, *, insists: bool = False) -> Iterator[None]:
    """Waits for who has it. Raises Failure naming a process that keeps it for minutes.

    Who `insists` goes on without it after seconds, also where the folder cannot be written.

    The lock is the kernel's, so that of a process that was killed is free at once.
    """
    try:
        lock = (state / "up.lock").open("a+")
    except OSError:
        if not insists:
            raise
        yield
        return
    with lock:
        if _waited_for(lock, state, report, insists=insists):
            # Only for who waits to name: a disk that is full keeps nobody.
            with suppress(OSError):
                os.ftruncate(lock.fileno(), 0)
                os.write(lock.fileno(), str(os.getpid()).encode())
        yield


def _waited_for(lock: IO[str], state: Path, report: StepReport, *, insists: bool) -> bool:
    if taken(lock):
        return True
    report(f"waiting for {_holder(lock)}")
    deadline = time.monotonic() + (_INSISTS_S if insists else _WAIT_S)
    while not taken(lock):
        if time.monotonic() > deadline:
            if insists:
                return False
            raise Failure(
                f"{_holder(lock)} starts or stops the stack in {state} and does not end; "
                "end it, then try again"
            )
        time.sleep(0.1)
    return True


def _holder(lock: IO[str]) -> str:
    lock.seek(0)
    return f"process {lock.read() or '?'}"
