"""Reads the cause of a failed load from Triton's log, where gRPC says only that it failed.

Tested by tests/engine/test_controller_parts.py.
"""

from __future__ import annotations

import re
from pathlib import Path

_TAIL = 256 * 1024
_ERROR = re.compile(r"^E\d{4} \S+ \d+ [\w.]+:\d+\] \"?(?P<text>.*?)\"?$")
_TEXT_FORMAT = re.compile(r"Error parsing text-format \S+ (?P<place>\d+:\d+): (?P<text>.*)")


class TritonLog:
    """Triton's log file; None when its output goes elsewhere."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def mark(self) -> int:
        """The log's end now, to look at what comes after it."""
        return self._path.stat().st_size if self._path and self._path.is_file() else 0

    def cause(self, mark: int, model: str) -> str | None:
        """The last error since `mark` that is about this model or its configuration."""
        lines = self._lines(mark)
        for line in reversed(lines):
            syntax = _TEXT_FORMAT.search(line)
            if syntax:
                return f"config.pbtxt {syntax['place']}: {syntax['text'].strip()}"
        for line in reversed(lines):
            found = _ERROR.match(line)
            if found and model in found["text"]:
                return found["text"]
        return None

    def _lines(self, mark: int) -> list[str]:
        if self._path is None or not self._path.is_file():
            return []
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            # A rotated log starts again.
            file.seek(max(mark if mark <= size else 0, size - _TAIL))
            return file.read().decode("utf-8", "replace").splitlines()
