"""What ends a command raises once, and not while it cleans up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from transformer_serving.desk.interruption import (
    interruptible,
    reraise_interruption,
    undisturbed,
)

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", ENDS)
def test_each_raises_and_nothing_is_left_of_it(number: signal.Signals) -> None:
    # As it is where neither nohup nor a shell's background has this run.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", ENDS)
def test_cleaning_up_is_not_interrupted(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with undisturbed():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_nor_what_it_starts() -> None:
    """A terminal's Ctrl-C is for the command's children, too."""
    asks = "import signal; print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    with undisturbed():
        said = subprocess.run([sys.executable, "-c", asks], capture_output=True, check=True)
    assert said.stdout == b"True\n"


def test_after_nohup_a_closed_terminal_interrupts_nothing() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_one_that_a_library_made_another_error_of_is_raised() -> None:
    """As pybind11 does with one that comes while a module of it is imported."""
    made = ImportError("initialization failed")
    reraise_interruption(made)
    between = SystemError("it returned a result with an exception set")
    made.__cause__, between.__cause__ = between, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        reraise_interruption(made)
