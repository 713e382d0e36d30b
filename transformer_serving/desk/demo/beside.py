"""A conversion in a process of its own, so that two models are made at a time.

Training and export use one core each, whatever a machine has.

Tested by tests/demo/test_beside.py.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from transformer_serving.desk.failure import Failure

if TYPE_CHECKING:
    from transformer_serving.desk.convert import ConvertRequest
    from transformer_serving.desk.workshop import Progress

_END_S = 5.0


@dataclass(frozen=True)
class Made:
    """What is said of a finished bundle."""

    version: int
    largest_difference: float
    reference: str


class Conversion:
    """One that runs; its steps are told from a thread."""

    def __init__(self, request: ConvertRequest, target: Path, progress: Progress) -> None:
        # Spawned: a fork of a process with torch's threads may stand still for ever.
        context = multiprocessing.get_context("spawn")
        self._news, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_convert, args=(theirs, request, target), daemon=True
        )
        self._progress = progress
        self._ended: Made | Failure | None = None
        self._process.start()
        # Its end is seen here only when nobody else could write any more.
        theirs.close()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def result(self) -> Made:
        """Wait for it. Raises what convert raised, and Failure where its process was killed."""
        self._listener.join()
        if self._ended is None:
            self._process.join(_END_S)
            raise Failure(
                f"a conversion ended with status {self._process.exitcode} before it was done; "
                "where memory is short, as with -9, free some and try again"
            )
        if isinstance(self._ended, Failure):
            raise self._ended
        return self._ended

    def end(self) -> None:
        """At once, finished or not."""
        self._process.terminate()
        self._process.join(_END_S)
        self._process.kill()
        self._listener.join()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                news = self._news.recv()
                if isinstance(news, tuple):
                    self._progress(*news)
                else:
                    self._ended = news


@contextmanager
def conversion(request: ConvertRequest, target: Path, progress: Progress) -> Iterator[Conversion]:
    """Begun at the start; at the end of the block it is over, whatever became of the block."""
    begun = Conversion(request, target, progress)
    try:
        yield begun
    finally:
        begun.end()


def made(request: ConvertRequest, target: Path, progress: Progress) -> Made:
    """Convert here. Raises ConversionRefused."""
    from transformer_serving.desk.convert import convert
    from transformer_serving.desk.parity.check import ParityReport

    converted = convert(request, target, progress)
    parity = converted.parity
    assert isinstance(parity, ParityReport)
    version = converted.bundle.endpoint.bundle_version
    return Made(version, parity.largest_difference, parity.reference)


def _convert(news: Connection, request: ConvertRequest, target: Path) -> None:
    # An interrupt from the keyboard comes to both, and the other one ends this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        news.send(made(request, target, lambda step, detail: news.send((step, detail))))
    except Failure as failure:
        news.send(failure)
