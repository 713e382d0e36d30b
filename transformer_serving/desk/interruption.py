"""Ctrl-C, a closed terminal and SIGTERM end a command alike: by an exception, once.

Tested by tests/test_interruption.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """In the block each of them raises KeyboardInterrupt; a terminal that closes after nohup does
    not. For the main thread alone."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    if before[signal.SIGHUP] == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """In the block none of them does anything: what is started is being ended."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def reraise_interruption(error: BaseException) -> None:
    """Raises the KeyboardInterrupt that a library made another error of.

    One that comes while a native module is imported is the cause of an ImportError.
    """
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        cause = cause.__cause__
