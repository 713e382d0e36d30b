"""The processes of a stack, also those that one has left by a crash: found, and ended.

Tested by tests/local/test_supervision.py and tests/stack/test_faults.py.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local.environment import PART_STOP_S
from transformer_serving.desk.local.sockets import sockets_of

SUPERVISOR = "supervisor.supervisord"
# Its variable of how long the front door has to end: a `down` in another shell knows it by that.
GRACE = "TRANSFORMER_SERVING_SUPERVISOR_GRACE"
# Of the supervisor, which ends the parts one after the other.
_STOP_S = 40.0


def supervisor_socket(state: Path) -> Path:
    return sockets_of(state) / "supervisor.sock"


def leftovers(state: Path) -> Iterator[psutil.Process]:
    """Processes of this stack, its supervisor and also those that one has left by a crash."""
    for process in psutil.process_iter():
        try:
            if _is_part(process, state) or _supervises(process, state):
                yield process
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue


def has_leftovers(state: Path) -> bool:
    return any(True for _ in leftovers(state))


@dataclass(frozen=True)
class Absence:
    """Why a stack whose supervisor is not there is not up, and the fix; `left_behind` says that
    parts of it run all the same, and may serve."""

    left_behind: bool
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.why}; {self.fix}"


def absence(state: Path, *, left_behind: bool | None = None) -> Absence:
    """Of a stack of which nobody says that it is up. `left_behind` is where that was looked at
    already: each look is at every process of the machine."""
    start = command_line("up", state)
    if not (has_leftovers(state) if left_behind is None else left_behind):
        return Absence(False, "the stack is down", f"start it: {start}")
    return Absence(
        True,
        "no supervisor keeps the stack any more, its parts may serve on",
        f"start it again: {start}; or end what is left: {command_line('down', state)}",
    )


def _is_part(process: psutil.Process, state: Path) -> bool:
    named = process.environ().get(MARK)
    return _is(named, state) or (named is not None and _runs_in(process, state))


def _is(named: str | None, state: Path) -> bool:
    """Also in the spelling of the folder's name with which an older kit started."""
    return named is not None and (named == str(state) or os.path.realpath(named) == str(state))


def _runs_in(process: psutil.Process, state: Path) -> bool:
    """Where it was started in this folder, which has had another name then: its mark is that name,
    and the system follows the folder."""
    return Path(process.cwd()) in (state, state / "run")


def sweep(state: Path) -> int:
    """End what there is of the stack, politely, then by force; how many a crash had left.

    The supervisor first: it ends the parts in their order, and would start again what ends before.
    """
    keepers = supervisors(state)
    patience_s = _STOP_S + max(map(_longer_s, keepers), default=0)
    end_processes(keepers, patience_s, lambda: _wake(state))
    left = list(leftovers(state))
    end_processes(left, 8.0)
    return 0 if keepers else len(left)


def supervisors(state: Path) -> list[psutil.Process]:
    """Those of this stack that are alive: one, or none after a crash."""
    return [process for process in leftovers(state) if _supervises(process, state)]


def _supervises(process: psutil.Process, state: Path) -> bool:
    """Also one that an older kit started without the mark."""
    try:
        command = process.cmdline()
        return SUPERVISOR in command and (
            _is(command[-1], state / "supervisord.conf") or _runs_in(process, state)
        )
    except psutil.Error:
        return False


def _longer_s(supervisor: psutil.Process) -> int:
    """What its front door has beyond what each part has; an older kit's has nothing."""
    try:
        return int(supervisor.environ().get(GRACE, PART_STOP_S)) - PART_STOP_S
    except (psutil.Error, ValueError):
        return 0


def _wake(state: Path) -> None:
    """Have it look at once whether a part has ended, which it does once a second otherwise."""
    with contextlib.suppress(OSError, Failure), socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(1)
        caller.connect(str(supervisor_socket(state)))


def end_processes(
    processes: list[psutil.Process],
    patience_s: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> None:
    """Asked first, and killed where they live on for longer than `patience_s`."""
    for process in processes:
        _signal(process, force=False)
    alive = _wait_for_end(processes, patience_s, meanwhile)
    for process in alive:
        _signal(process, force=True)
    _wait_for_end(alive, 2.0)


def _signal(process: psutil.Process, *, force: bool) -> None:
    try:
        if force:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        return


def _wait_for_end(
    processes: list[psutil.Process],
    seconds: float,
    meanwhile: Callable[[], None] = lambda: None,
) -> list[psutil.Process]:
    """Those that live on."""
    deadline = time.monotonic() + seconds
    while alive := [process for process in processes if lives(process)]:
        if time.monotonic() > deadline:
            break
        meanwhile()
        time.sleep(0.05)
    return alive


def lives(process: psutil.Process) -> bool:
    """One that only waits to be collected does not: in a container nobody may come for it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
