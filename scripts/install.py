"""Install locks into the environment of the Python that runs this, with several pips at a time.

    .venv/bin/python scripts/install.py requirements/desk.lock --alone requirements/carried.lock

One pip fetches, unpacks and compiles one package after the other, on one core. A lock names every
package, so each pip takes some of them without their dependencies. A last one adds what this
platform wants beside them, such as torch's CUDA, and fails where something does not fit. What a
lock of `--alone` names stays without its dependencies.

Needs nothing but Python's standard library: what it installs is not there yet.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

AT_A_TIME = 4
_INSTALL = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install")
# A file of a local folder is processed, others are collected.
_FETCHES = ("Collecting ", "Processing ", "Requirement already satisfied: ")


@dataclass
class Progress:
    """One line that is renewed on a terminal; elsewhere a line whenever a pip has ended."""

    packages: int
    fetched: int = 0
    installed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, *, fetched: int = 0, installed: int = 0) -> None:
        with self._lock:
            self.fetched += fetched
            self.installed += installed
            if sys.stdout.isatty():
                sys.stdout.write(f"\r{self}")
            elif installed:
                sys.stdout.write(f"{self}\n")
            sys.stdout.flush()

    def __str__(self) -> str:
        return f"packages: {self.fetched} of {self.packages} fetched, {self.installed} installed"


class Pip:
    """One that runs; it puts itself into `ended` when it has, with all that it `said`."""

    def __init__(
        self, rows: Sequence[str], folder: Path, progress: Progress, ended: Queue[Pip]
    ) -> None:
        self._rows, self._progress, self._ended = rows, progress, ended
        lock = folder / f"{rows[0].partition('=')[0]}.lock"
        lock.write_text("\n".join(rows), "utf-8")
        self.process = subprocess.Popen(
            [*_INSTALL, "--progress-bar=off", "--no-deps", "-r", str(lock)],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if line.startswith(_FETCHES):
                self._progress.add(fetched=1)
        if self.process.wait() == 0:
            self._progress.add(installed=len(self._rows))
        self._ended.put(self)


def rows_of(lock: Path) -> list[str]:
    """The pins of a lock."""
    rows = (row.strip() for row in lock.read_text("utf-8").splitlines())
    return [row for row in rows if row and not row.startswith("#")]


def install(parts: Sequence[Sequence[str]]) -> int:
    """A pip for each part, all at a time; 0, or the exit status of the first that fails.

    That ends the others, as an interruption does.
    """
    progress, ended = Progress(sum(map(len, parts))), Queue[Pip]()
    pips: list[Pip] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            pips += [Pip(rows, Path(folder), progress, ended) for rows in parts]
            for _ in parts:
                pip = ended.get()
                if pip.process.returncode:
                    sys.stderr.write("\n" + "".join(pip.said))
                    return pip.process.returncode
        finally:
            for pip in pips:
                pip.process.terminate()
                pip.process.wait()
    if sys.stdout.isatty():
        sys.stdout.write("\n")
        sys.stdout.flush()
    return 0


def main(arguments: Sequence[str]) -> int:
    """pip's exit status where one fails, behind all that it said."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("lock", type=Path)
    parser.add_argument("--alone", type=Path, metavar="LOCK")
    asked = parser.parse_args(arguments)
    rows = rows_of(asked.lock)
    parts = [rows[at::AT_A_TIME] for at in range(AT_A_TIME)]
    if asked.alone:
        parts.append(rows_of(asked.alone))
    if status := install([part for part in parts if part]):
        return status
    return subprocess.run([*_INSTALL, "--quiet", "-r", str(asked.lock)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
