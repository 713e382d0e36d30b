"""A program in another one's place, found by its name on a path of the test's own."""

from __future__ import annotations

from pathlib import Path


def stand_in(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(text)
    program.chmod(0o755)
    return program
