"""A whole command within its time: uploads, ClearML's own retries and registry calls included.

Each of those has a limit of its own, and together they outlast any that a user gives. So an alarm
ends what is under way, wherever that waits, and a command that was started is killed with it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import psutil

from transformer_serving.desk.failure import Failure
from transformer_serving.desk.interruption import undisturbed
from transformer_serving.desk.step_report import StepReport

# What waits with a limit of its own, and knows why it waits, gets the first word.
_FIRST_WORD_S = 1.0
_LONGER = "try again with a longer --timeout"


class OutOfTime(BaseException):
    """Not an Exception: nothing on the way may take it for a fault of its own and go on."""


class Interrupted(Failure):
    """Ctrl-C came in the middle of a change; the message says how to go on."""


class TimeLimit:
    """What is left of a command's time, and what it does: `report` notes it and passes it on.

    `advice` is how to go on where it was too little; a command that has begun to change something
    sets its own. `late` stands before it while what is waited for may come after the command's end.
    """

    late: str | None = None

    def __init__(self, seconds: float, spent: float, report: StepReport, advice: str) -> None:
        self.seconds = seconds
        self.advice = advice
        self._ends = time.monotonic() + seconds - spent
        self._report = report
        self.step = "starting"

    def left(self) -> float:
        return max(0.0, self._ends - time.monotonic())

    def after_alarm(self) -> float:
        """Patience for what the alarm is to end; where none can be set, this ends it."""
        return self.left() + 2 * _FIRST_WORD_S

    def share(self, of: int) -> TimeLimit:
        """An equal part of what is left, for one of so many that are waited for in turn."""
        return TimeLimit(self.left() / of, 0.0, self.report, self.advice)

    def report(self, step: str) -> None:
        self.step = step
        self._report(step)


def since_start() -> float:
    """Seconds since this process was started: a command's imports count, too."""
    return max(0.0, time.time() - psutil.Process().create_time())


def lift_alarm() -> None:
    """For a clean-up, which has limits of its own; an exception leaves its block in any case."""
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def cleaning_up(seconds: float) -> Iterator[None]:
    """No signal ends the block but its own time, after which what is left of it is left.

    For a command that ends by an exception: its alarm is lifted. Outside the main thread, which no
    signal reaches, it has all the time that it takes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise OutOfTime

    with undisturbed():
        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        with suppress(OutOfTime):
            try:
                yield
            finally:
                lift_alarm()
                signal.signal(signal.SIGALRM, before)


@contextmanager
def within(
    seconds: float, what: str, report: StepReport, *, look: str, spent: float = 0.0,
    advice: str = _LONGER,
) -> Iterator[TimeLimit]:  # fmt: skip
    """Raises Failure, saying what it was doing, when the block lasts a second longer than that, and
    Interrupted when it is once it has an advice of its own.

    `look` is where one sees how far it came; `spent` are seconds of it that are gone already.
    Outside the main thread, where no alarm can be set, only `left` counts.
    """
    limit = TimeLimit(seconds, spent, report, advice)
    if threading.current_thread() is not threading.main_thread():
        yield limit
        return

    def ring(_number: int, _frame: FrameType | None) -> None:
        said = [f"{what} did not end within {seconds:.0f} s", f"it was {limit.step}"]
        said += [f"look: {look}", *filter(None, [limit.late]), limit.advice]
        raise OutOfTime("; ".join(said))

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, limit.left() + _FIRST_WORD_S)
    try:
        yield limit
    except OutOfTime as rung:
        raise Failure(str(rung)) from None
    except KeyboardInterrupt:
        if limit.advice == advice:
            raise
        raise Interrupted(
            f"{what} was interrupted; it was {limit.step}; the same command goes on with it; "
            f"{limit.advice}"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
