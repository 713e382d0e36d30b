"""A step's own process, which ends with all that it started; and its time, told from within.

Tested by tests/benchmarks/test_gpu_processes.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from types import FrameType

import psutil

from transformer_serving.desk.local.leftovers import end_processes
from transformer_serving.desk.step_report import StepReport

# In the environment of the process, and so of all that it starts, daemons included.
_MARK = "CHECK_GPU_STEP"
_DOCKER_S = 60


class OverLimit(BaseException):
    """A step took longer than it may. No Exception: what a step calls must not catch it."""


@contextlib.contextmanager
def limited(seconds: float, report: StepReport) -> Iterator[StepReport]:
    """Raises OverLimit in the block when the time is up; what it opened is closed on the way.

    Where the moment falls into a callback of an event loop or of a parser, that is lost there: so
    the report that the block is given raises it too.
    """
    is_over = False

    def over(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True
        raise _over(seconds)

    def told(line: str) -> None:
        # What closes is not to be broken off.
        if is_over and not _is_raised(sys.exception()):
            raise _over(seconds)
        report(line)

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield told
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _over(seconds: float) -> OverLimit:
    return OverLimit(f"it took more than {seconds:g} s")


def _is_raised(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, OverLimit):
        error = error.__context__
    return error is not None


def labels() -> list[str]:
    """Options of `docker run` by which the container ends with the step that starts it: of Docker's
    daemon it is no process that the step started."""
    mark = os.environ.get(_MARK)
    return ["--label", f"{_MARK}={mark}"] if mark else []


class StepProcess:
    """Started at once."""

    def __init__(self, command: Sequence[str]) -> None:
        self._mark = uuid.uuid4().hex
        self._child = subprocess.Popen(command, env={**os.environ, _MARK: self._mark})

    def wait(self, limit_s: float) -> int | None:
        """Its exit status; None where it goes on."""
        try:
            return self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self, patience_s: float) -> int:
        """End it, and then what it left behind in whatever session; asked first, and killed where
        that takes longer than `patience_s`. Its exit status."""
        if self._child.poll() is None:
            self._child.terminate()
            if self.wait(patience_s) is None:
                self._child.kill()
        status = self._child.wait()
        end_processes(list(self._there()), patience_s)
        # Again: what is asked to end may start something.
        for one in self._there():
            with contextlib.suppress(psutil.Error):
                one.kill()
        self._remove_containers()
        return status

    def _remove_containers(self) -> None:
        """Where Docker does not answer, its containers are left."""
        docker = shutil.which("docker")
        if docker is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            asked = subprocess.run(
                [docker, "ps", "--all", "--quiet", "--filter", f"label={_MARK}={self._mark}"],
                capture_output=True, text=True, timeout=_DOCKER_S, check=False,
            )  # fmt: skip
            if there := asked.stdout.split():
                subprocess.run(
                    [docker, "rm", "--force", *there],
                    capture_output=True, timeout=_DOCKER_S, check=False,
                )  # fmt: skip

    def _there(self) -> Iterator[psutil.Process]:
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if one.environ().get(_MARK) == self._mark:
                    yield one
