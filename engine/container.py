"""The Triton container's two processes: tritonserver and the controller beside it.

The container lives as long as its Triton: when that ends, so does the container, and Docker's
restart policy starts it anew. The controller only tells Triton what to load; it is started again
in place, and nothing that is served notices.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import IO

from contract.server_facts import COMPATIBLE_VARIABLE
from engine.image_pin import refuse_difference
from engine.triton_process import TritonAddresses, triton_command

TRITONSERVER = Path("/opt/tritonserver/bin/tritonserver")
BACKENDS = Path("/opt/tritonserver/backends")
STATE = Path("/var/lib/transformer-serving")
# Minutes, as clearml-serving has it.
POLL_VARIABLE = "CLEARML_TRITON_POLL_FREQ"
_POLL_MINUTES = 0.1
GRACE_VARIABLE = "TRANSFORMER_SERVING_GRACE_SECONDS"
_GRACE_SECONDS = 30.0
FILTER_VARIABLE = "TRANSFORMER_SERVING_ENDPOINTS"

_log = logging.getLogger("engine.container")
_LOG_BYTES = 8 * 1024 * 1024
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_LOOK_S = 0.2


def main() -> None:
    refuse_difference()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    try:
        triton, controller = commands(os.environ, STATE)
    except ValueError as error:
        sys.exit(f"error: {error}")
    (STATE / "models").mkdir(parents=True, exist_ok=True)
    sys.exit(Container(triton, controller, STATE / "triton.log").run())


def commands(environment: Mapping[str, str], state: Path) -> tuple[list[str], list[str]]:
    """The two commands. Raises ValueError naming a variable that is no number.

    Triton listens on every address of the container, of which compose publishes none.
    """
    extra = ()
    if environment.get(COMPATIBLE_VARIABLE) == "1":
        extra = ("--backend-config=tensorrt,version-compatible=true",)
    triton = triton_command(
        TRITONSERVER,
        repository=state / "models",
        backend_directory=BACKENDS,
        addresses=TritonAddresses(host="0.0.0.0"),
        extra=extra,
    )
    poll = 60 * _number(environment, POLL_VARIABLE, _POLL_MINUTES)
    controller = [
        sys.executable,
        "-m",
        "engine.controller",
        f"--serving-id={environment.get('CLEARML_SERVING_TASK_ID', '')}",
        "--triton-metrics=http://127.0.0.1:8002/metrics",
        f"--triton-log={state / 'triton.log'}",
        f"--repository={state / 'models'}",
        f"--state={state / 'controller.json'}",
        f"--poll-seconds={poll:g}",
        f"--grace-seconds={_number(environment, GRACE_VARIABLE, _GRACE_SECONDS):g}",
        f"--filter={environment.get(FILTER_VARIABLE) or '*'}",
    ]
    return triton, controller


class Container:
    """Both processes, from start to end. `run` returns the container's exit code."""

    def __init__(self, triton: list[str], controller: list[str], log: Path) -> None:
        self._triton_command = triton
        self._controller_command = controller
        self._log = log
        self._stopping = threading.Event()

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._leave)
        triton = subprocess.Popen(
            self._triton_command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert triton.stdout is not None
        copying = threading.Thread(target=_copy, args=(triton.stdout, self._log), daemon=True)
        copying.start()
        controller = subprocess.Popen(self._controller_command)
        pause, again, started = _FIRST_PAUSE_S, 0.0, time.monotonic()
        while triton.poll() is None and not self._stopping.wait(_LOOK_S):
            if controller.poll() is None:
                continue
            if not again:
                pause = _next_pause(pause, time.monotonic() - started)
                again = time.monotonic() + pause
                _log.error("controller ended with %s; again in %g s", controller.returncode, pause)
            elif time.monotonic() >= again:
                controller = subprocess.Popen(self._controller_command)
                again, started = 0.0, time.monotonic()
        return self._end(triton, controller, copying)

    def _leave(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping.set()

    def _end(
        self,
        triton: subprocess.Popen[bytes],
        controller: subprocess.Popen[bytes],
        copying: threading.Thread,
    ) -> int:
        """Tell both to end. Triton first finishes what it computes; how long is Docker's to say."""
        if triton.poll() is not None:
            _log.error("tritonserver ended with %s", triton.returncode)
        for process in (controller, triton):
            if process.poll() is None:
                process.terminate()
        code = triton.wait()
        controller.wait()
        copying.join()
        return 0 if self._stopping.is_set() else (code if code > 0 else 1)


def _next_pause(pause: float, lived: float) -> float:
    """Longer after each quick end, the first one again after a run of some length."""
    return _FIRST_PAUSE_S if lived > _LONGEST_PAUSE_S else min(2 * pause, _LONGEST_PAUSE_S)


def _copy(lines: IO[bytes], path: Path) -> None:
    """Triton's lines to the container's log, and to a file of bounded size for the controller."""
    with path.open("wb") as file:
        for line in lines:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            if file.tell() + len(line) > _LOG_BYTES:
                file.seek(0)
                file.truncate()
            file.write(line)
            file.flush()


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if not text:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < 86_400:
        raise ValueError(f"{name} must be a number above 0, less than 86400")
    return number


if __name__ == "__main__":
    main()
