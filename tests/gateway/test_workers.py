"""Workers that are killed are replaced at once, whatever the others do."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from dataclasses import replace

import psutil
import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import Server, Session

# Of a worker that was killed: the limit for one that hangs is a minute.
SOON_S = 45
STARTED = "Application startup complete"


def running_workers(server: Server) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "spawn_main" in " ".join(process.cmdline()):
                found.append(process)
    return found


def replaced(server: Server, dead: psutil.Process) -> psutil.Process:
    """The new worker in the place of the one that is killed now."""
    before = running_workers(server)
    started = time.monotonic()
    dead.send_signal(signal.SIGKILL)
    wait_until(lambda: [one for one in running_workers(server) if one not in before], SOON_S)
    print(f"replaced after {time.monotonic() - started:.2f} s")  # noqa: T201
    return next(one for one in running_workers(server) if one not in before)


def test_a_killed_worker_is_replaced_beside_one_that_hangs(session: Session) -> None:
    server = session.gateway("--workers=2").start().wait_for("/health/ready")
    hanging, killed = running_workers(server)
    hanging.send_signal(signal.SIGSTOP)
    try:
        # The second one is killed in its start, before it can answer the question for its health.
        replaced(server, replaced(server, killed))
        assert hanging in running_workers(server)
    finally:
        hanging.send_signal(signal.SIGCONT)
        server.wait_for("/health/ready")
        server.stop()


@pytest.mark.long
@pytest.mark.parametrize("started", [True, False])
def test_workers_leave_when_their_parent_was_killed(session: Session, started: bool) -> None:
    """Else they would keep the port from the parent that comes next. The control plane hangs."""
    server = session.gateway("--workers=2").start()
    wait_until(lambda: server.log.read_text().count(STARTED) >= (2 if started else 1), 120)
    workers = running_workers(server)
    assert len(workers) == 2
    session.control_plane.process.send_signal(signal.SIGSTOP)
    try:
        server.process.kill()
        wait_until(lambda: not any(worker.is_running() for worker in workers), SOON_S)
    finally:
        session.control_plane.process.send_signal(signal.SIGCONT)
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_workers_that_start_at_once_have_tasks_of_their_own(session: Session) -> None:
    """Without CLEARML_TASK_NO_REUSE two of three have the same one in most starts."""
    environment = {**session.environment}
    del environment["CLEARML_TASK_NO_REUSE"]
    server = replace(session, environment=environment).gateway("--workers=3").start()
    try:
        made = re.compile(r"^ClearML Task: (.*) task id=(\w+)$", re.MULTILINE)
        wait_until(lambda: len(made.findall(server.log.read_text())) >= 3, 120)
        found = made.findall(server.log.read_text())
    finally:
        server.stop()
    assert {what for what, _ in found} == {"created new"}
    assert len({task for _, task in found}) == 3
