"""A program in another one's place, found by its name on a path of the test's own."""

from __future__ import annotations

from pathlib import Path

from transformer_serving.contract.gate.server_facts import Gpu


def stand_in(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    program = folder / name
    program.write_text(text)
    program.chmod(0o755)
    return program


def nvidia_smi(folder: Path, script: str) -> Path:
    """One that a shell is; on PATH of what is to ask it `folder` comes first."""
    return stand_in(folder, "nvidia-smi", f"#!/bin/sh\n{script}\n")


def names(gpu: Gpu) -> str:
    """The line of such a script that names the GPU."""
    return f"echo '{gpu.name}, {gpu.driver}, {gpu.compute_capability}'"
