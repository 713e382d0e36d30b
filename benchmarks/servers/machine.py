"""What a figure depends on: the machine, its CPU's features, versions, commit and date."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# What decides the speed of an engine on a CPU; others say nothing about text models.
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
_PACKAGES = (
    "clearml", "clearml-serving", "fastapi", "starlette", "granian", "uvicorn", "uvloop",
    "httptools", "tokenizers", "transformers", "torch", "onnxruntime", "openvino", "numpy",
    "nvidia-pytriton",
)  # fmt: skip


def provenance() -> dict[str, Any]:
    """What a stored figure depends on, at this moment: to be asked before it is measured."""
    return {
        "date": today(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, Any]:
    """The machine as a report names it."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "features": cpu_features(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """Versions of what took part, ours by commit."""
    return {"python": platform.python_version(), **packages(_PACKAGES)}


def packages(names: Iterable[str], folders: Sequence[str] | None = None) -> dict[str, str]:
    """The versions of those that are installed, here or in the folders of another Python."""
    path = list(sys.path if folders is None else folders)
    found: dict[str, str] = {}
    for name in names:
        for one in importlib.metadata.distributions(name=name, path=path):
            found.setdefault(name, one.version)
    return found


# What a measurement writes: no change of what is measured.
_MEASURED = ("--", ".", ":(exclude)benchmarks/results", ":(exclude)docs")


# What stands behind a commit whose tree had changes, and in place of one that nobody knows.
CHANGED, UNKNOWN = "+", "unknown"


def commit() -> str:
    """The commit measured; '+' says that the tree had changes, but for figures and pages.

    Outside of git, where a tree without its history was carried to, it is BENCH_COMMIT's.
    """
    name = _git("rev-parse", "--short=12", "HEAD")
    if not name:
        return os.environ.get("BENCH_COMMIT", UNKNOWN)
    return (
        f"{name}{CHANGED}"
        if _git("status", "--porcelain", "--untracked-files=no", *_MEASURED)
        else name
    )


def is_exact(name: str) -> bool:
    """Whether code of that commit is the same code: changes and what nobody knows have no name."""
    return name != UNKNOWN and not name.endswith(CHANGED)


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def cpu_features() -> list[str]:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return []
    found = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    flags = set(found.group(1).split()) if found else set()
    return [name for name in _FEATURES if name in flags]


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
