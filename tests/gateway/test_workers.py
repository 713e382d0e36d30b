"""Workers that are killed are replaced at once, whatever the others do."""

from __future__ import annotations

import os
import signal

import psutil

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import Server, Session
from tests.gateway.fuzzing import workers_of

# Of a worker that was killed: uvicorn's own limit for one that hangs is a minute.
SOON_S = 45


def replaced(server: Server, dead: psutil.Process) -> psutil.Process:
    """The new worker in the place of the one that was killed."""
    before = workers_of(server)
    dead.send_signal(signal.SIGKILL)
    wait_until(lambda: [one for one in workers_of(server) if one not in before], SOON_S)
    return next(one for one in workers_of(server) if one not in before)


def test_a_killed_worker_is_replaced_beside_one_that_hangs(session: Session) -> None:
    server = session.gateway("--workers=2").start().wait_for("/health/ready")
    hanging, killed = workers_of(server)
    os.kill(hanging.pid, signal.SIGSTOP)
    try:
        # The second one is killed in its start, before it can answer the question for its health.
        replaced(server, replaced(server, killed))
        assert hanging in workers_of(server)
    finally:
        os.kill(hanging.pid, signal.SIGCONT)
        server.wait_for("/health/ready")
        assert server.stop() == 0
