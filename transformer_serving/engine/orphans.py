"""Model processes that a Triton left behind when it was killed, and its shared memory.

Triton's Python stubs end when they see their server gone, but not those that waited for a lock in
its shared memory when it died: they stay for good, with their memory and with the server's sockets,
which every child of Triton inherits. A client whose connection such a process holds open waits
without end. And what a stub has started, as vLLM its engine, may not see that the stub is gone.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from transformer_serving.engine.shared_memory import remove_areas

# /proc has the first 15 characters of a name.
SERVER = "tritonserver"
STUB = "triton_python_b"
_REPOSITORY = "--model-repository"


def end_orphans(repository: Path) -> int:
    """Kill the stubs with models of `repository` that have no server; how many there were.

    Without a Triton that serves it, what is left of its shared memory goes, too.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(STUB) and _is_orphan(process, repository):
                process.kill()
                found.append(process)
    gone = _gone(found)
    if server_of(repository) is None:
        remove_areas(repository)
    return gone


def end_session(leader: int) -> int:
    """Kill what is left of the session that a process began which has ended; how many there were.

    Its number is nobody else's before the last of them is gone.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                found.append(process)
    return _gone(found)


def _gone(killed: list[psutil.Process]) -> int:
    """How many of them are; one that the kernel holds is not waited for without end."""
    gone, _ = psutil.wait_procs(killed, timeout=5)
    return len(gone)


def server_of(repository: Path) -> psutil.Process | None:
    """The Triton that serves `repository`; None while it is away, or runs out of our sight."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            for argument in process.cmdline():
                option, _, value = argument.partition("=")
                if option == _REPOSITORY and _below(process, value, repository) == Path():
                    return process
    return None


def model_of(stub: psutil.Process, repository: Path) -> str:
    """'' of another repository's."""
    return version_of(stub, repository)[0]


def version_of(stub: psutil.Process, repository: Path) -> tuple[str, str]:
    """Model and version: its first argument is the model's file, REPOSITORY/MODEL/VERSION/FILE.
    Two times '' of another repository's."""
    command = stub.cmdline()
    below = _below(stub, command[1], repository) if len(command) > 1 else None
    model, version = (*(below.parts if below else ()), "", "")[:2]
    return model, version


def _below(process: psutil.Process, named: str, repository: Path) -> Path | None:
    """What a process names, from `repository`; None outside of it.

    Links are not followed: a version is one, out of its model's folder. A name from the working
    directory is that of triton_process.nameable, whose links were.
    """
    path = Path(named)
    if not path.is_absolute():
        path = Path(os.path.normpath(Path(process.cwd()) / path))
        repository = repository.resolve()
    return path.relative_to(repository) if path.is_relative_to(repository) else None


def _is_orphan(process: psutil.Process, repository: Path) -> bool:
    parent = process.parent()
    served = parent is not None and parent.name().startswith(SERVER)
    return not served and bool(model_of(process, repository))
