"""Keeping the parts alive with supervisord: start, ask, and stop.

supervisord because it restarts what dies, stops process groups in reverse order, rotates logs,
answers over a local socket, and has been kept for two decades (docs/decisions/stack.md).

Tested by tests/local/test_supervision.py and tests/stack/test_faults.py.
"""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from transformer_serving.contract.stack_line import MARK
from transformer_serving.desk.command_line import command_line
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import UnixConnection
from transformer_serving.desk.local.environment import (
    OPEN_FILES,
    PART_STOP_S,
    USUAL_GRACE,
    environment_of_parts,
    stop_seconds,
)
from transformer_serving.desk.local.leftovers import (
    GRACE,
    SUPERVISOR,
    supervisor_socket,
    supervisors,
    sweep,
)
from transformer_serving.desk.local.parts import PARTS
from transformer_serving.desk.local.record import write_private

# Of what it does, such as to stop a part; and of what it only says.
_RPC_S, _ANSWER_S = 60.0, 8.0
# Its variables of where its socket and the Python of its parts are.
_LISTENER, _PYTHON = "TRANSFORMER_SERVING_SUPERVISOR_SOCKET", "TRANSFORMER_SERVING_PART_PYTHON"
# What asking a supervisor raises that is there and does not answer: so many may wait that none can.
_UNANSWERED = (TimeoutError, BlockingIOError)
# And one that is not there, or leaves.
_SILENT = (OSError, http.client.HTTPException, xmlrpc.client.Error)
# One that ends sooner after its start waits before the next, each time a second longer; above what
# its imports take, or one that they end would be started again without a pause.
_START_S = 10
# Of each part's log; with its backups a log takes three times as much.
LOG_BYTES = 20 << 20
LOG_BACKUPS = 2


# supervisord's word for a part that ended at once and is started again after a pause.
WAITING = "BACKOFF"
# And for one that it was told to stop, which it leaves so.
STOPPED = "STOPPED"


@dataclass(frozen=True)
class Process:
    """What the supervisor says of one part; `state` is its own word, RUNNING when up."""

    name: str
    state: str
    pid: int | None
    uptime_s: float


def configuration() -> str:
    """supervisord.conf of the stack; it is read in the stack's folder.

    It names no folder itself: supervisord reads percent signs, semicolons and number signs in one
    as its own, the first up to twice. It finds them in its variables.
    """
    head = f"""[supervisord]
logfile=logs/supervisor.log
logfile_maxbytes=5MB
logfile_backups=1
pidfile=supervisor.pid
minfds={OPEN_FILES}
childlogdir=logs

[unix_http_server]
file=%(ENV_{_LISTENER})s
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""
    return head + "".join(_program(name, order) for order, name in enumerate(_names()))


def _names() -> list[str]:
    return [part.name for part in PARTS]


def _program(name: str, order: int) -> str:
    return f"""
[program:{name}]
command="%(ENV_{_PYTHON})s" -P -m transformer_serving.desk.local.run_part {name}
directory=run
priority={order}
autostart=false
autorestart=true
startsecs={_START_S}
startretries=1000000
stopasgroup=true
killasgroup=true
stopwaitsecs={f"%(ENV_{GRACE})s" if name == "inference" else PART_STOP_S}
redirect_stderr=true
stdout_logfile=logs/{name}.log
stdout_logfile_maxbytes={LOG_BYTES}
stdout_logfile_backups={LOG_BACKUPS}
"""


class SilentSupervisor(Failure):
    """It is there and does not answer: what it keeps may serve all the same."""

    def __init__(self, state: Path) -> None:
        pids = [process.pid for process in supervisors(state)]
        named = f" (pid {pids[0]})" if pids else ""
        self.why = (
            f"the supervisor{named} does not answer: it is stopped, or this machine has no memory "
            "or no time for it; its parts may serve on"
        )
        going_on = f"let it go on: kill -CONT {pids[0]}; or " if pids else ""
        self.fix = f"{going_on}end the whole stack: {command_line('down', state)}"
        super().__init__(f"{self.why}; {self.fix}")


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, state: Path, timeout_s: float) -> None:
        super().__init__()
        self._state = state
        self._timeout_s = timeout_s

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        # Where close() looks for it.
        self._connection = host, UnixConnection(supervisor_socket(self._state), self._timeout_s)
        return self._connection[1]

    def request(self, *arguments: Any, **named: Any) -> Any:
        """A connection for each call: nobody is told when the last one was made."""
        try:
            return super().request(*arguments, **named)
        finally:
            self.close()


def _calls(state: Path, timeout_s: float) -> Any:
    transport = _UnixTransport(state, timeout_s)
    return xmlrpc.client.ServerProxy("http://localhost", transport=transport).supervisor


class Supervisor:
    """The supervisor of one state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._rpc = _calls(state, _RPC_S)
        self._asked = _calls(state, _ANSWER_S)

    def is_up(self) -> bool:
        """Raises SilentSupervisor where nobody can tell: what it keeps may serve."""
        try:
            return bool(self._asked.getState()["statename"] == "RUNNING")
        except _UNANSWERED as error:
            raise SilentSupervisor(self.state) from error
        except _SILENT:
            return False

    def environment(self) -> dict[str, str] | None:
        """What it was started with and gives to its parts; None where that cannot be read."""
        try:
            return psutil.Process(self._asked.getPID()).environ()
        except (*_SILENT, psutil.Error):
            return None

    def start(self, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        """Start supervisord, without any part yet. Raises Failure when it does not come up.

        `settings` are of its parts, where the environment says nothing of them.
        """
        (self.state / "logs").mkdir(parents=True, exist_ok=True)
        # Python puts the working directory on sys.path: in the state folder itself, its
        # sub-folder `triton` would pass for the package of that name.
        (self.state / "run").mkdir(exist_ok=True)
        config = self.state / "supervisord.conf"
        write_private(config, configuration())
        done = subprocess.run(
            [sys.executable, "-P", "-m", SUPERVISOR, "-c", str(config)],
            cwd=self.state,
            env={
                **environment_of_parts(os.environ, {**USUAL_GRACE, **settings}),
                MARK: str(self.state),
                _LISTENER: str(supervisor_socket(self.state)),
                _PYTHON: sys.executable,
                GRACE: str(stop_seconds(os.environ)),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        deadline = time.monotonic() + 10
        while not self.is_up():
            if done.returncode or time.monotonic() > deadline:
                said = (done.stdout + done.stderr).strip()[-500:]
                raise Failure(f"supervisord did not start: {said}")
            time.sleep(0.05)

    def start_part(self, name: str) -> None:
        """Start it, now also where it waits since it ended at once the last time. Raises Failure
        with why it cannot be, or where the supervisor is not there any more.
        """
        with self._telling(f"{name} could not be started", there="ALREADY_STARTED"):
            if self._rpc.getProcessInfo(name)["statename"] == WAITING:
                # It counts as started, and its pause goes on.
                self._rpc.stopProcess(name)
            self._rpc.startProcess(name, False)

    def stop_part(self, name: str) -> None:
        """End it, until it is started. Raises Failure likewise."""
        with self._telling(f"{name} could not be stopped", there="NOT_RUNNING"):
            self._rpc.stopProcess(name)

    @contextmanager
    def _telling(self, failed: str, there: str) -> Iterator[None]:
        """`there` is the fault of a part that is already as it is to be."""
        try:
            yield
        except xmlrpc.client.Fault as fault:
            if there not in fault.faultString:
                raise Failure(f"{failed}: {fault.faultString}") from fault
        except _UNANSWERED as error:
            raise SilentSupervisor(self.state) from error
        except _SILENT as error:
            raise Failure(f"{failed}: {stopped(self.state)}") from error

    def processes(self) -> dict[str, Process]:
        """Every part by name; empty when the stack is down. Raises SilentSupervisor."""
        if not self.is_up():
            return {}
        try:
            rows = self._asked.getAllProcessInfo()
        except _UNANSWERED as error:
            raise SilentSupervisor(self.state) from error
        except _SILENT:  # it began to leave between the two questions
            return {}
        return {
            row["name"]: Process(
                row["name"],
                row["statename"],
                row["pid"] or None,
                max(0.0, row["now"] - row["start"]) if row["pid"] else 0.0,
            )
            for row in rows
        }

    def stop(self) -> int:
        """Stop all parts in reverse order and the supervisor itself; processes swept up."""
        swept = sweep(self.state)
        (self.state / "supervisor.pid").unlink(missing_ok=True)
        supervisor_socket(self.state).unlink(missing_ok=True)
        return swept


def stopped(state: Path) -> str:
    """By a `down` that has waited long enough for an `up`."""
    return f"the stack was stopped meanwhile; start it again with '{command_line('up', state)}'"
