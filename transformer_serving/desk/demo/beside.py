"""A conversion in a process of its own, so that two models are made at a time.

Training and export use one core each, whatever a machine has.

Tested by tests/demo/test_beside.py.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_serving.desk.failure import Failure

if TYPE_CHECKING:
    from transformer_serving.desk.conversion.encoder import ConvertRequest
    from transformer_serving.desk.conversion.workshop import Progress

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
        self._news, theirs = Pipe()
        # A fork of a process with torch's threads may stand still for ever.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
        )
        # Its end is seen here only when nobody else could write any more.
        theirs.close()
        with contextlib.suppress(BrokenPipeError):
            self._news.send((request, target))
        self._progress = progress
        self._ended: Made | Failure | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def result(self) -> Made:
        """Wait for it. Raises what convert raised, and Failure where its process was killed."""
        self._listener.join()
        if self._ended is None:
            status = self._process.wait(_END_S)
            raise Failure(
                f"a conversion ended with status {status} before it was done; "
                "where memory is short, as with -9, free some and try again"
            )
        if isinstance(self._ended, Failure):
            raise self._ended
        return self._ended

    def end(self) -> None:
        """At once, finished or not."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._news.close()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
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
    from transformer_serving.desk.conversion.encoder import convert
    from transformer_serving.desk.parity.check import ParityReport

    converted = convert(request, target, progress)
    parity = converted.parity
    assert isinstance(parity, ParityReport)
    version = converted.bundle.endpoint.bundle_version
    return Made(version, parity.largest_difference, parity.reference)


def main() -> None:
    """The other process: the request comes over the connection whose number is the argument."""
    # An interrupt from the keyboard comes to both, and the other one ends this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    news: Connection[Any, Any] = Connection(int(sys.argv[1]))
    request, target = news.recv()
    try:
        news.send(made(request, target, lambda step, detail: news.send((step, detail))))
    except Failure as failure:
        news.send(failure)


if __name__ == "__main__":
    # By its own name, by which what is sent is known to who reads it.
    from transformer_serving.desk.demo import beside

    beside.main()
