"""What a supervisor hands to a worker that it starts, and what it hears of it.

Tested by tests/gateway/test_workers.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from transformer_serving.gateway.server.tls import Tls

# Between two signs of life.
BEAT_S = 1.0
# In which the connections of one that makes way bring a request, whose answer is their last one.
MAKING_WAY_S = 5.0
# By which it is told so. Not SIGHUP, which comes to a whole group of processes: every worker would
# leave, and no other be there.
MAKE_WAY = signal.SIGUSR1


class Report(Enum):
    """One byte of the pipe from worker to supervisor."""

    ALIVE = b"a"
    STARTED = b"s"


@dataclass(frozen=True)
class WorkerOrder:
    """`module` has the app. `listener`, `reports` and `parent` are open files' numbers.

    `reports` is written to; of `parent` nothing is ever read but its end, when the parent's
    process has ended however it did. After `leave_seconds` from SIGTERM on a worker is killed.
    `grpc` is the address of that port, None without one. With `when_ready` others serve meanwhile,
    and nobody is to come to this one before its endpoints are built and asked. `since` is when the
    supervisor was started, in Unix time.
    """

    module: str
    listener: int
    reports: int
    parent: int
    backlog: int
    graceful_seconds: float
    leave_seconds: float
    tls: Tls | None = None
    grpc: str | None = None
    when_ready: bool = False
    since: float = 0.0

    def line(self) -> str:
        """As one argument of a command."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @staticmethod
    def parse(line: str) -> WorkerOrder:
        fields = json.loads(line)
        tls = fields.pop("tls")
        if tls is not None:
            tls = Tls(**{name: path and Path(path) for name, path in tls.items()})
        return WorkerOrder(**fields, tls=tls)

    def report(self, what: Report) -> None:
        # A supervisor that was stopped does not read, one that was killed is noticed elsewhere.
        with contextlib.suppress(OSError):
            os.write(self.reports, what.value)

    def wait_for_the_parents_end(self) -> None:
        os.read(self.parent, 1)
