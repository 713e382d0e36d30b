"""The areas of shared memory in which Triton and its model processes hand each other tensors.

Each model process has one, which grows with the largest call. Triton removes them when it leaves;
of one that was killed with its model processes they stay, also for the container that comes next
in a pod. So they get a name by which they are known.

Those of our backends are closed to other users by themselves (backends/shared_area.py), those of
others, as vLLM's, by the controller once they are loaded.

Tested by tests/engine/test_orphans.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from pathlib import Path

from transformer_serving.engine.backends.shared_area import FOLDER, close_area

# Those with a model.py are run by it, and take its options under their own name.
_PYTHON = "python"


def area_options(repository: Path, backend_directory: Path) -> list[str]:
    """The options by which the areas of a Triton that serves `repository` have its prefix."""
    on_python = {path.parent.name for path in backend_directory.glob("*/model.py")}
    return [
        f"--backend-config={backend},shm-region-prefix-name={area_prefix(repository)}"
        for backend in sorted({_PYTHON, *on_python})
    ]


def area_prefix(repository: Path) -> str:
    """Of this user, machine or container, and repository: containers may share the memory of
    their host, in which each has its repository at the same place.
    """
    whose = f"{os.getuid()} {socket.gethostname()} {repository.resolve()}"
    return f"triton_{hashlib.sha256(whose.encode()).hexdigest()[:16]}_"


def close_areas(repository: Path) -> None:
    """Let nobody but this user read those of a Triton of `repository`."""
    for area in FOLDER.glob(f"{area_prefix(repository)}*"):
        close_area(area)


def remove_areas(repository: Path) -> None:
    """Remove what a Triton of `repository` left; none may serve it now."""
    for area in FOLDER.glob(f"{area_prefix(repository)}*"):
        with contextlib.suppress(OSError):
            area.unlink()
