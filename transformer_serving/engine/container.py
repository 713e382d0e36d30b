"""The Triton container's two processes: tritonserver and the controller beside it.

Either is started again in place when it ends: a Triton that crashed has its models back as soon as
they are loaded, with the controller still running. One that hangs is killed for that: Docker's
health check only says so. A Triton that ends soon after its start ends the container, so that
Docker shows it and waits longer before each new start.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path
from subprocess import PIPE, STDOUT
from types import FrameType, MappingProxyType
from typing import IO

from transformer_serving.contract.signatures import read_trusted_keys
from transformer_serving.engine.container_commands import STATE_FILE, commands, end_seconds
from transformer_serving.engine.controller.state import StateFile
from transformer_serving.engine.image_pin import refuse_difference
from transformer_serving.engine.orphans import end_orphans, end_session
from transformer_serving.engine.silence import Heartbeat, Liveness
from transformer_serving.engine.triton_process import KEY_VARIABLE, TritonAddresses

STATE = Path("/var/lib/transformer-serving")
_log = logging.getLogger("engine.container")
_LOG_BYTES = 8 * 1024 * 1024
_QUICK_END_S = 20.0
# From one start of the controller to the next, at least.
_CONTROLLER_PAUSE_S = 5.0
# It goes round twice a second, and nothing slow runs in that loop. After this it hangs.
_SILENCE_S = 300.0
# A Triton that had answered hangs after this. The chart's liveness probe waits twice as long, as it
# would else end the container with the Triton that has just been started.
_TRITON_SILENCE_S = 60.0
_END_S = 30.0
_LOOK_S = 0.2
# What was killed is gone by then, but where the kernel holds it.
_KILLED_S = 1.0
_LAST_LINES_S = 1.0


def main() -> None:
    refuse_difference()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    key = secrets.token_urlsafe(32)
    try:
        # What is no key would have the controller refuse every bundle, one after the other.
        read_trusted_keys(os.environ)
        triton, controller = commands(os.environ, STATE, key)
        end_s = end_seconds(os.environ)
    except ValueError as error:
        sys.exit(f"error: {error}")
    (STATE / "models").mkdir(parents=True, exist_ok=True)
    # By the address of the health check, which is also this container's own.
    liveness = Liveness(TritonAddresses().http)
    private = {KEY_VARIABLE: key}
    sys.exit(Container(triton, controller, STATE, private, end_s=end_s, liveness=liveness).run())


class Container:
    """Both processes, from start to end; `state` has models/ and gets Triton's log.

    `private` are variables for the controller only; it may be without a beat for `silence_s`. Told
    to end, both have `end_s`. `liveness` is Triton's, where it is asked. `run` returns the
    container's exit code.
    """

    def __init__(
        self,
        triton: list[str],
        controller: list[str],
        state: Path,
        private: Mapping[str, str] = MappingProxyType({}),
        silence_s: float = _SILENCE_S,
        end_s: float = _END_S,
        liveness: Liveness | None = None,
    ) -> None:
        self._state = state / STATE_FILE
        self._heartbeat = Heartbeat(self._state)
        self._silence_s = silence_s
        self._end_s = end_s
        self._liveness = liveness
        self._repository = state / "models"
        self._triton = _Child(triton, state / "triton.log")
        self._controller = _Child(controller, None, private)
        self._stopping = False

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._leave)
        _forget_status(self._state)
        self._start_triton()
        self._start_controller()
        code = None
        while code is None:
            time.sleep(_LOOK_S)
            if self._stopping:
                break
            code = self._look_after_triton()
            self._look_after_controller()
        self._end()
        return code or 0

    def _look_after_triton(self) -> int | None:
        """The container's exit code when Triton ended for good, else None."""
        ended = self._triton.ended()
        if ended is None:
            self._kill_silent_triton()
            return None
        _log.error("tritonserver ended with %s after %.0f s", ended, self._triton.lived())
        if self._triton.lived() < _QUICK_END_S:
            return ended if ended > 0 else 1
        self._start_triton()
        return None

    def _start_triton(self) -> None:
        """In a pod, also what the container before has left: its shared memory outlives it."""
        if left := self._triton.end_left() + end_orphans(self._repository):
            _log.warning("%d of its model processes were left and have been killed", left)
        self._triton.start()
        if self._liveness is not None:
            self._liveness.begin()

    def _kill_silent_triton(self) -> None:
        if self._liveness is None:
            return
        silent_s = self._liveness.silent_s(time.monotonic())
        if silent_s > _TRITON_SILENCE_S:
            _log.error("tritonserver hangs: it has not answered for %.0f s; killed", silent_s)
            self._triton.kill()
            # As with the controller.
            self._liveness.begin()

    def _look_after_controller(self) -> None:
        ended = self._controller.ended()
        if ended is None:
            self._kill_silent_controller()
        elif self._controller.lived() > _CONTROLLER_PAUSE_S:
            _log.error("the controller ended with %s; started again", ended)
            self._start_controller()

    def _start_controller(self) -> None:
        self._controller.start()
        self._heartbeat.begin()

    def _kill_silent_controller(self) -> None:
        silent_s = self._heartbeat.silent_s(time.monotonic())
        if silent_s > self._silence_s and self._heartbeat.can_beat():
            _log.error("the controller hangs: it has not gone round for %.0f s; killed", silent_s)
            self._controller.kill()
            # Where the kernel holds it for now, it is killed once and not at each look.
            self._heartbeat.begin()

    def _leave(self, _number: int, _frame: FrameType | None) -> None:
        # No event: this is the thread that would wait for it, mostly with the event's own lock.
        self._stopping = True

    def _end(self) -> None:
        """Tell both to end, and kill what has not: in a pod nobody else would, where a line in the
        container has ended this one. Triton first finishes what it computes."""
        if self._liveness is not None:
            self._liveness.end()
        both = {"the controller": self._controller, "tritonserver": self._triton}
        for child in both.values():
            child.terminate()
        last = time.monotonic() + self._end_s
        for name, child in both.items():
            if not child.wait(last - time.monotonic()):
                _log.error("%s has not ended within %.0f s; killed", name, self._end_s)
                child.kill()


class _Child:
    """One of the two processes, started as often as needed; `log` gets a copy of its lines."""

    def __init__(
        self,
        command: list[str],
        log: Path | None,
        private: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._command = command
        self._log = log
        self._private = private
        self._process: subprocess.Popen[bytes] | None = None
        self._copying: threading.Thread | None = None
        self._started = 0.0

    def start(self) -> None:
        self._started = time.monotonic()
        output = None if self._log is None else PIPE
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, **self._private},
            stdout=output,
            stderr=STDOUT if output else None,
            # By which `end_left` knows what it started.
            start_new_session=True,
        )
        if self._log is not None and self._process.stdout is not None:
            arguments = (self._process.stdout, self._log)
            self._copying = threading.Thread(target=_copy, args=arguments, daemon=True)
            self._copying.start()

    def ended(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def lived(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._started

    def terminate(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self.wait(_KILLED_S)

    def end_left(self) -> int:
        """How many processes it had started that outlived it; they are killed."""
        return 0 if self._process is None else end_session(self._process.pid)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended by then, with its last lines copied."""
        if self._process is not None:
            try:
                self._process.wait(max(0.0, seconds))
            except subprocess.TimeoutExpired:
                return False
        if self._copying is not None:
            # A stub that outlives its Triton holds the pipe open.
            self._copying.join(_LAST_LINES_S)
        return True


def _copy(lines: IO[bytes], path: Path) -> None:
    """Triton's lines to the container's log, and to a file of bounded size for the controller."""
    with lines, closing(_LogFile(path)) as file:
        for line in lines:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            file.write(line)


class _LogFile:
    """Lines that find no room are left out: who stopped reading would end Triton by SIGPIPE."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None

    def write(self, line: bytes) -> None:
        with suppress(OSError):
            if self._file is None:
                self._file = FileIO(self._path, "w")
            if self._file.tell() + len(line) > _LOG_BYTES:
                self._file.seek(0)
                self._file.truncate()
            at = self._file.tell()
            if self._file.write(line) != len(line):
                self._file.seek(at)
                self._file.truncate()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _forget_status(file: Path) -> None:
    """A pod's startup probe asks it before the new controller has looked at anything."""
    try:
        StateFile(file).forget_status()
    except OSError as error:
        _log.error("%s is as the container before has left it: %s", file, error)


if __name__ == "__main__":
    main()
