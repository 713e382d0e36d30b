"""clearml-serving's command line in a process that has imported it, and forks for each call.

The import takes longer than most calls do, and a command of ours makes several. A call is a process
of its own all the same, which ends as any does. It is forked from the only thread: the SDK starts
its own by what it is asked for, and BLAS is told to start none. No terminal interrupts the two: who
waits for the call ends both, and they end where that one is killed.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO

_COMMAND = "transformer_serving.desk.clearml_tools.command"


class WarmCommand:
    """The other process, seen from here; it has one call at a time."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._calls, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                env={**environment, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=(theirs.fileno(),), process_group=0,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def call(
        self, arguments: Sequence[str], variables: Mapping[str, str], timeout_s: float
    ) -> tuple[int, str]:
        """Exit code and output, stdout before stderr; `variables` are for this call alone.

        Raises TimeoutError. After any exception it has to be ended, as the call may go on.
        """
        asked = json.dumps([arguments, {**self.environment, **variables}]).encode() + b"\n"
        # With none at all it would not wait, and say something else.
        self._calls.settimeout(max(0.001, timeout_s))
        code = b""
        with _nowhere() as out, _nowhere() as err, ExitStack() as stack:
            folder = os.open(".", os.O_PATH)
            stack.callback(os.close, folder)
            with suppress(ConnectionError):
                socket.send_fds(self._calls, [b"\0"], [out.fileno(), err.fileno(), folder])
                self._calls.sendall(asked)
                code = self._calls.recv(16)
            if not code:
                self.end()
            out.seek(0), err.seek(0)
            return int(code or -signal.SIGKILL), out.read() + err.read()

    def end(self) -> None:
        """At once, with its call."""
        self._calls.close()
        if self.process.returncode is None:
            # Its call outlives one that was killed, whose number stays its own until `wait`.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _nowhere() -> IO[str]:
    """A file in memory, read as a command's output is."""
    return os.fdopen(os.memfd_create("output"), "w+")


_waiting: list[WarmCommand] = []


def taken(environment: Mapping[str, str]) -> WarmCommand:
    """The one that waits, or another where there is none, as while it has a call, or where its
    environment is not this one, of which the import reads as well."""
    with suppress(IndexError):
        waiting = _waiting.pop()
        if waiting.environment == environment and waiting.process.poll() is None:
            return waiting
        waiting.end()
    return WarmCommand(environment)


@atexit.register
def end_waiting() -> None:
    while _waiting:
        _waiting.pop().end()


def keep(command: WarmCommand) -> None:
    """For the next call, or the end of this process; of several, this one."""
    end_waiting()
    _waiting.append(command)


def main() -> None:
    """The other process: calls come over the socket whose number is the argument."""
    calls = socket.socket(fileno=int(sys.argv[1]))
    # What cannot be imported fails in each call, which says so.
    with suppress(Exception):
        importlib.import_module(_COMMAND)
    # What is there by now is left alone by the calls, whose memory it is, too, until they write.
    gc.freeze()
    # Who began the desk may have it ignored, and then no end of a call could be asked for.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    while True:
        _, handed, _, _ = socket.recv_fds(calls, 1, 3)
        with calls.makefile("rb") as file:
            asked = file.readline()
        # Nothing more comes before its answer: who is gone does not want it any more.
        if not asked.endswith(b"\n") or select.select([calls], [], [], 0)[0]:
            os._exit(0)
        over, held = os.pipe()
        if not (pid := os.fork()):
            break
        for number in (held, *handed):
            os.close(number)
        if gone := calls.fileno() in select.select([calls.fileno(), over], [], [])[0]:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if gone:
            # And what it has started.
            os.killpg(0, signal.SIGKILL)
        os.close(over)
        calls.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    calls.close()
    arguments, environment = json.loads(asked)
    _become(arguments, environment, handed)


def _become(arguments: list[str], environment: dict[str, str], handed: list[int]) -> None:
    """The command line itself, as in a new process."""
    out, err, folder = handed
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.fchdir(folder)
    for number in handed:
        os.close(number)
    os.environ.clear()
    os.environ.update(environment)
    # The import has looked for one already.
    tempfile.tempdir = None
    sys.argv[:] = ["clearml-serving", *arguments]
    sys.modules["__main__"] = command = importlib.import_module(_COMMAND)
    command.main()


if __name__ == "__main__":
    main()
