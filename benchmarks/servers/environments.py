"""Virtual environments of the peers, each from its own pinned list under benchmarks/venvs/."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from benchmarks.servers import machine
from benchmarks.servers.process import Unusable
from benchmarks.servers.site import BUILD

_LISTS = Path(__file__).parent.parent / "venvs"
_INSTALL_S = 1800
# What a peer's figures depend on, of what is in one of these.
_PACKAGES = (
    "fastapi", "gunicorn", "litserve", "mlserver", "openvino", "starlette", "tokenizers", "torch",
    "transformers", "uvicorn",
)  # fmt: skip


def environment_python(name: str, report: Callable[[str], None]) -> Path:
    """The Python of a peer's environment, made or found made from the same list.

    Raises Unusable with pip's last line when it cannot be installed here.
    """
    wanted = _LISTS / f"{name}.txt"
    folder = BUILD / "venvs" / name
    python = folder / "bin" / "python"
    stamp = folder / "list.sha256"
    digest = hashlib.sha256(wanted.read_bytes() + sys.version.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text("utf-8") == digest:
        return python
    report(f"installing {name}'s own environment")
    venv.create(folder, with_pip=True, clear=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "-r", str(wanted)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unusable(f"pip did not install {name} within {_INSTALL_S} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise Unusable(f"pip install for {name}: {(lines or ['failed'])[-1]}")
    stamp.write_text(digest, "utf-8")
    return python


def versions(name: str) -> dict[str, str]:
    """Of what takes part in a peer's environment; of one that is not installed, none."""
    folders = (BUILD / "venvs" / name / "lib").glob("python*/site-packages")
    return machine.packages(_PACKAGES, [str(folder) for folder in folders])
