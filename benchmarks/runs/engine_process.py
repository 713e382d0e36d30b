"""The engine alone, from outside: a process of benchmarks.runs.raw_engine, and asking it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.servers.process import Unusable


class RawEngine:
    """The process of benchmarks.runs.raw_engine."""

    def __init__(self, folder: Path, scratch: Path, backend: str = "") -> None:
        self._log = (scratch / "raw-engine.log").open("ab")
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "benchmarks.runs.raw_engine", str(folder),
                *([backend] if backend else []),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self._line()

    def measure(self, batch: int, tokens: int, seconds: float) -> dict[str, float]:
        return self._asked({"batch": batch, "tokens": tokens, "seconds": seconds})

    def measure_mixed(
        self, lengths: Sequence[int], pads: Sequence[int], seconds: float
    ) -> dict[str, float]:
        return self._asked({"lengths": list(lengths), "pads": list(pads), "seconds": seconds})

    def _asked(self, wanted: Mapping[str, Any]) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        figures: dict[str, float] = json.loads(self._line())
        return figures

    def close(self) -> None:
        self._process.terminate()
        # Its pipes close too.
        self._process.communicate()
        self._log.close()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unusable("the raw engine's process ended; see raw-engine.log")
        return line
