"""Keeping the parts alive with supervisord: start, ask, stop, and sweep up after a crash.

supervisord because it restarts what dies, stops process groups in reverse order, rotates logs,
answers over a local socket, and has been kept for two decades (docs/decisions/stack.md).

Tested by tests/stack/test_faults.py.
"""

from __future__ import annotations

import http.client
import subprocess
import sys
import time
import xmlrpc.client
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import UnixConnection
from transformer_serving.desk.local.parts import PARTS
from transformer_serving.desk.local.record import MARK, write_private
from transformer_serving.desk.local.sockets import supervisor_socket

_STOP_S = 40.0
_RPC_S = 60.0
# What asking a supervisor raises that is not there, or leaves.
_SILENT = (OSError, http.client.HTTPException, xmlrpc.client.Error)
# Of each part's log; with its backups a log takes three times as much.
LOG_BYTES = 20 << 20
LOG_BACKUPS = 2


@dataclass(frozen=True)
class Process:
    """What the supervisor says of one part; `state` is its own word, RUNNING when up."""

    name: str
    state: str
    pid: int | None
    uptime_s: float


def configuration(state: Path) -> str:
    """supervisord.conf of the stack. Percent signs are doubled, as its format wants."""
    folder = str(state).replace("%", "%%")
    socket = str(supervisor_socket(state)).replace("%", "%%")
    head = f"""[supervisord]
logfile={folder}/logs/supervisor.log
logfile_maxbytes=5MB
logfile_backups=1
pidfile={folder}/supervisor.pid
childlogdir={folder}/logs
environment={MARK}="{folder}"

[unix_http_server]
file={socket}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""
    return head + "".join(_program(name, order, folder) for order, name in enumerate(_names()))


def _names() -> list[str]:
    return [part.name for part in PARTS]


def _program(name: str, order: int, folder: str) -> str:
    python = sys.executable.replace("%", "%%")
    return f"""
[program:{name}]
command="{python}" -P -m transformer_serving.desk.local.run_part {name} "{folder}"
directory={folder}/run
priority={order}
autostart=false
autorestart=true
startsecs=1
startretries=1000000
stopasgroup=true
killasgroup=true
stopwaitsecs=12
redirect_stderr=true
stdout_logfile={folder}/logs/{name}.log
stdout_logfile_maxbytes={LOG_BYTES}
stdout_logfile_backups={LOG_BACKUPS}
"""


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        # Where close() looks for it.
        self._connection = host, UnixConnection(self._path, _RPC_S)
        return self._connection[1]

    def request(self, *arguments: Any, **named: Any) -> Any:
        """A connection for each call: nobody is told when the last one was made."""
        try:
            return super().request(*arguments, **named)
        finally:
            self.close()


class Supervisor:
    """The supervisor of one state folder."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self._rpc: Any = xmlrpc.client.ServerProxy(
            "http://localhost", transport=_UnixTransport(supervisor_socket(state))
        ).supervisor

    def is_up(self) -> bool:
        try:
            return bool(self._rpc.getState()["statename"] == "RUNNING")
        except _SILENT:
            return False

    def start(self) -> None:
        """Start supervisord, without any part yet. Raises Failure when it does not come up."""
        (self.state / "logs").mkdir(parents=True, exist_ok=True)
        # Python puts the working directory on sys.path: in the state folder itself, its
        # sub-folder `triton` would pass for the package of that name.
        (self.state / "run").mkdir(exist_ok=True)
        config = self.state / "supervisord.conf"
        write_private(config, configuration(self.state))
        done = subprocess.run(
            [sys.executable, "-P", "-m", "supervisor.supervisord", "-c", str(config)],
            cwd=self.state,
            capture_output=True,
            text=True,
            check=False,
        )
        deadline = time.monotonic() + 10
        while not self.is_up():
            if done.returncode or time.monotonic() > deadline:
                raise Failure(f"supervisord did not start: {done.stdout.strip()[-500:]}")
            time.sleep(0.05)

    def start_part(self, name: str) -> None:
        try:
            self._rpc.startProcess(name, False)
        except xmlrpc.client.Fault as fault:
            if "ALREADY_STARTED" not in fault.faultString:
                raise Failure(f"{name} could not be started: {fault.faultString}") from fault

    def processes(self) -> dict[str, Process]:
        """Every part by name; empty when the supervisor does not answer."""
        if not self.is_up():
            return {}
        try:
            rows = self._rpc.getAllProcessInfo()
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

    def stop(self) -> None:
        """Stop all parts in reverse order and the supervisor itself, then sweep."""
        if self.is_up():
            self._rpc.shutdown()
            deadline = time.monotonic() + _STOP_S
            while self.is_up() and time.monotonic() < deadline:
                time.sleep(0.1)
            _wait_for_end(list(leftovers(self.state)), 5.0)
        sweep(self.state)
        supervisor_socket(self.state).unlink(missing_ok=True)


def leftovers(state: Path) -> Iterator[psutil.Process]:
    """Processes of this stack, also those whose supervisor has crashed."""
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(state):
                yield process
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue


def sweep(state: Path) -> int:
    """End what is left of the stack: politely, then by force. Returns how many there were."""
    found = list(leftovers(state))
    for process in found:
        _signal(process, force=False)
    for process in _wait_for_end(found, 8.0):
        _signal(process, force=True)
    _wait_for_end(found, 2.0)
    return len(found)


def _signal(process: psutil.Process, *, force: bool) -> None:
    try:
        if force:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        return


def _wait_for_end(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return list(alive)
