"""The cluster's programs as processes of this machine: started, killed, and stopped at the end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_STOP_S = 20.0


class Processes:
    """Each by its name, with a log of that name in the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str, **environment: str) -> None:
        assert name not in self._running
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
                env={**os.environ, **environment},
            )  # fmt: skip

    def check(self) -> None:
        """Each that was started still runs."""
        for name, process in self._running.items():
            code = process.poll()
            assert code is None, f"{name} ended with {code}: {self._folder / name}.log"

    def kill(self, name: str) -> None:
        """As the kernel would."""
        process = self._running.pop(name)
        process.kill()
        process.wait(_STOP_S)

    def stop(self) -> None:
        """All, those that were started last first."""
        while self._running:
            _, process = self._running.popitem()
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_STOP_S)
