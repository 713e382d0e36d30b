"""Install locks into the environment of the Python that runs this, with several pips at a time.

    .venv/bin/python scripts/install.py requirements/desk.lock --alone requirements/carried.lock

One pip fetches, unpacks and compiles one package after the other, on one core. A lock names every
package, so each pip takes some of them without their dependencies. A last one adds what this
platform wants beside them, such as torch's CUDA, and fails where something does not fit. What a
lock of `--alone` names stays without its dependencies. What an earlier run was ended in is
installed again.

Needs nothing but Python's standard library: what it installs is not there yet.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue

AT_A_TIME = 4
_INSTALL = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")
# A file of a local folder is processed, others are collected.
_PLAIN = ("--progress-bar=off",)
_ADDS = ("Collecting ", "Downloading ", "  Downloading ", "Installing ", "Successfully ")
# What a pip says of one package before it fetches that, and of all when it has them.
_BEGINS = ("Collecting ", "Processing ", "Requirement already satisfied: ")
_HAS_ALL = "Installing collected packages: "


def say(text: str) -> None:
    # Nobody may read it, and a disk be full; what is to be installed does not depend on that.
    with contextlib.suppress(OSError):
        sys.stdout.write(text)
        sys.stdout.flush()


@dataclass
class Progress:
    """One line that is renewed on a terminal; elsewhere a line whenever a pip has ended."""

    packages: int
    begun: int = 0
    fetched: int = 0
    installed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _since: float = field(default_factory=time.monotonic)

    def add(self, *, begun: int = 0, fetched: int = 0, installed: int = 0) -> None:
        with self._lock:
            self.begun += begun
            self.fetched += fetched
            self.installed += installed
            if sys.stdout.isatty():
                # Seconds, as a large package takes minutes in which nothing else changes.
                say(f"\r{self}, {time.monotonic() - self._since:.0f} s")
            elif installed:
                say(f"{self}\n")

    def __str__(self) -> str:
        return (
            f"packages: {self.begun} of {self.packages} begun, {self.fetched} fetched, "
            f"{self.installed} installed"
        )


class Pip:
    """One that runs; it puts itself into `ended` when it has, with all that it `said`."""

    def __init__(
        self, rows: Sequence[str], lock: Path, progress: Progress, ended: Queue[Pip]
    ) -> None:
        self._rows, self._progress, self._ended = rows, progress, ended
        lock.write_text("\n".join(rows), "utf-8")
        self.process = subprocess.Popen(
            [*_INSTALL, *_PLAIN, "--no-deps", "-r", str(lock)],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # With the processes in which it builds a package, it is ended as one.
            process_group=0,
        )
        self.said: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            to_fetch = len(self._rows)
            for line in self.process.stdout:
                self.said.append(line)
                if line.startswith(_BEGINS):
                    self._progress.add(begun=1)
                elif line.startswith(_HAS_ALL):
                    self._progress.add(fetched=to_fetch)
                    to_fetch = 0
            if self.process.wait() == 0:
                self._progress.add(fetched=to_fetch, installed=len(self._rows))
            elif self.process.returncode < 0:
                self.said.append(f"pip was ended by signal {-self.process.returncode}\n")
        finally:
            self._ended.put(self)


def rows_of(lock: Path) -> list[str]:
    """The pins of a lock."""
    rows = (row.strip() for row in lock.read_text("utf-8").splitlines())
    return [row for row in rows if row and not row.startswith("#")]


def forget_halves(folder: Path) -> list[str]:
    """Of packages that a pip was ended in: their metadata, for which it would leave them so.

    The last that pip 23.2.1 and 24.2 write of a package is a RECORD of its own, which names the
    INSTALLER; the one that a wheel brings does not (pip/_internal/operations/install/wheel.py).
    """
    halves = []
    for info in sorted(folder.glob("*.dist-info")):
        record = info / "RECORD"
        if not record.is_file() or f"{info.name}/INSTALLER" not in record.read_text("utf-8"):
            shutil.rmtree(info)
            halves.append(info.name.removesuffix(".dist-info"))
    return halves


def install(parts: Sequence[Sequence[str]]) -> int:
    """A pip for each part, all at a time; 0, or the exit status of the first that fails.

    That ends the others, as an interruption does.
    """
    progress, ended = Progress(sum(map(len, parts))), Queue[Pip]()
    pips: list[Pip] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for at, rows in enumerate(parts):
                pips.append(Pip(rows, Path(folder, f"{at}.lock"), progress, ended))
            for _ in parts:
                pip = _next_of(ended, progress)
                if pip.process.returncode:
                    sys.stderr.write("\n" + "".join(pip.said))
                    return pip.process.returncode
        finally:
            for pip in pips:
                pip.end()
    if sys.stdout.isatty():
        say("\n")
    return 0


def _next_of(ended: Queue[Pip], progress: Progress) -> Pip:
    while True:
        try:
            return ended.get(timeout=1)
        except Empty:
            progress.add()


def complete(lock: Path) -> int:
    """The last pip, which says what it adds: on some platforms that is gigabytes."""
    with subprocess.Popen(
        [*_INSTALL, *_PLAIN, "-r", str(lock)], stdout=subprocess.PIPE, text=True, errors="replace"
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            if line.startswith(_ADDS):
                say(line)
    return pip.returncode


def main(arguments: Sequence[str]) -> int:
    """pip's exit status where one fails, behind all that it said."""
    # Else it would end without ending its pips.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("lock", type=Path)
    parser.add_argument("--alone", type=Path, metavar="LOCK")
    asked = parser.parse_args(arguments)
    rows = rows_of(asked.lock)
    parts = [rows[at::AT_A_TIME] for at in range(AT_A_TIME)]
    if asked.alone:
        parts.append(rows_of(asked.alone))
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        if halves := forget_halves(Path(place)):
            say(f"installed by half, so again: {', '.join(halves)}\n")
    if status := install([part for part in parts if part]):
        return status
    return complete(asked.lock)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
