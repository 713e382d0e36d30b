"""Child processes of a measurement: started with a log, waited for, ended with all they started."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_END_S = 15.0
# Also how exactly the time of a start is known.
_POLL_S = 0.02
# The first answer of a recipe with half a billion numbers takes a slow processor 10 of them.
_ANSWER_S = 60.0


class Unusable(Exception):
    """A peer or part that cannot be made to run; the message is its own last words."""


@dataclass
class Child:
    """One process in a session of its own, so that what it starts ends with it."""

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                list(self.command),
                env={**os.environ, **self.environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until(self, url: str, *, body: bytes | None = None, limit_s: float = 120.0) -> None:
        """Return when `url` answers 200. Raises Unusable when the process ends or time is up."""
        deadline = time.monotonic() + limit_s
        last = "no answer"
        while time.monotonic() < deadline:
            self._refuse_ended()
            last = _tried(url, body)
            if last == "200":
                return
            time.sleep(_POLL_S)
        raise Unusable(
            f"{self.name} did not answer within {limit_s:.0f} s ({last}): {self.last_words()}"
        )

    def wait_until_said(self, line: re.Pattern[str], times: int, *, limit_s: float = 120.0) -> None:
        """Return when its log has so many of these lines. Raises Unusable as `wait_until` does."""
        deadline = time.monotonic() + limit_s
        while (said := len(line.findall(self.log.read_text("utf-8", "replace")))) < times:
            self._refuse_ended()
            if time.monotonic() > deadline:
                raise Unusable(
                    f"{self.name} said {said} times of {times} within {limit_s:.0f} s what matches "
                    f"'{line.pattern}': {self.last_words()}"
                )
            time.sleep(_POLL_S)

    def _refuse_ended(self) -> None:
        if self.process is None or self.process.poll() is not None:
            raise Unusable(f"{self.name} ended at its start: {self.last_words()}")

    def last_words(self) -> str:
        return last_words(self.log)

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        # Also what outlived its parent in the same session.
        _signal(process.pid, signal.SIGKILL)
        process.wait()

    def tree(self) -> list[psutil.Process]:
        """The process and all below it, as far as they are there."""
        if self.process is None:
            return []
        return tree(self.process.pid)


def last_words(log: Path, most: int = 1) -> str:
    """The last `most` lines of a log that say something."""
    try:
        lines = log.read_text("utf-8", "replace").splitlines()
    except OSError:
        return "no log"
    said = [line.strip()[:300] for line in lines if line.strip()]
    return "; ".join(said[-most:]) if said else "an empty log"


def tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@dataclass(frozen=True)
class Use:
    """What processes used: CPU seconds since they started, and resident bytes now."""

    cpu_s: float
    memory: int


def use(processes: Iterable[psutil.Process]) -> Use:
    cpu, memory = 0.0, 0
    for process in processes:
        try:
            times = process.cpu_times()
            cpu += times.user + times.system
            memory += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return Use(cpu, memory)


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    return use(processes).cpu_s


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on right now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


def _tried(url: str, body: bytes | None) -> str:
    kind = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, body, kind if body else {})
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return f"status {error.code}: {error.read()[:200].decode('utf-8', 'replace')}"
    except OSError as error:
        return str(error)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)
