"""The engine alone, from outside: a process of benchmarks.runs.raw_engine, and asking it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.servers.process import Unusable, last_words

# CUDA says what is wrong some lines before its last one.
LAST_LINES = 6


class RawEngine:
    """The process of benchmarks.runs.raw_engine. `packed`: it computes no padding; `remarks` say
    what is slower than it might be, and why.

    Raises Unusable where its process ends, with what that said last.
    """

    def __init__(self, folder: Path, scratch: Path, backend: str = "") -> None:
        self._log = (scratch / "raw-engine.log").open("ab")
        self.remarks: list[str] = []
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "benchmarks.runs.raw_engine", str(folder),
                *([backend] if backend else []),
            ],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        try:
            self.packed: bool = self._answer()["packed"]
        except BaseException:
            self.close()
            raise

    def measure(
        self, batch: int, tokens: int, seconds: float, pause_s: float = 0.0
    ) -> dict[str, float]:
        return self._asked(
            {"batch": batch, "tokens": tokens, "seconds": seconds, "pause_s": pause_s}
        )

    def measure_mixed(
        self, lengths: Sequence[int], pads: Sequence[int], seconds: float
    ) -> dict[str, float]:
        return self._asked({"lengths": list(lengths), "pads": list(pads), "seconds": seconds})

    def _asked(self, wanted: Mapping[str, Any]) -> dict[str, float]:
        assert self._process.stdin is not None
        # Of one that has ended, the answer says so.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(wanted) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.terminate()
        # Its pipes close too.
        self._process.communicate()
        self._log.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status, said = self._process.wait(), last_words(Path(self._log.name), LAST_LINES)
            raise Unusable(f"the raw engine's process ended with {status}: {said}")
        found: dict[str, Any] = json.loads(line)
        self.remarks = found.pop("remarks")
        return found
