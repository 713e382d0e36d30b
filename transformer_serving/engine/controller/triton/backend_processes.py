"""The processes in which a Triton on this machine runs the models of its Python backends.

One that ended by itself is left as a zombie, which has no command line: of what model it was is
known from the living ones alone.

Tested by tests/engine/test_dead_models.py and tests/engine/test_stuck_loads.py.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

from transformer_serving.engine.orphans import STUB, server_of, version_of
from transformer_serving.engine.shared_memory import close_areas


class BackendProcesses:
    """Those of the Triton that serves `repository`; none while it is away or runs out of our sight,
    as in another container. One instance is used from several threads.
    """

    def __init__(self, repository: Path) -> None:
        self._repository = repository
        self._lock = threading.Lock()
        self._server: psutil.Process | None = None

    def look(self) -> tuple[dict[int, tuple[str, str]], frozenset[int]]:
        """Model and version of each living one by its pid, and the pids of the dead."""
        try:
            return self._seen()
        except psutil.AccessDenied:
            # One that is not ours to ask would count for one that died.
            return {}, frozenset()

    def _seen(self) -> tuple[dict[int, tuple[str, str]], frozenset[int]]:
        living: dict[int, tuple[str, str]] = {}
        dead: set[int] = set()
        for process in self._stubs():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.status() == psutil.STATUS_ZOMBIE:
                    dead.add(process.pid)
                else:
                    living[process.pid] = version_of(process, self._repository)
        return living, frozenset(dead)

    def close_areas(self) -> None:
        """Let no other user read what they and Triton hand each other."""
        close_areas(self._repository)

    def kill_server(self) -> None:
        """End the Triton whose processes were looked at last."""
        with self._lock, contextlib.suppress(psutil.NoSuchProcess):
            if self._server is not None:
                self._server.kill()

    def _stubs(self) -> Iterator[psutil.Process]:
        for process in self._children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name().startswith(STUB):
                    yield process

    def _children(self) -> list[psutil.Process]:
        with self._lock:
            if self._server is None or not self._server.is_running():
                self._server = server_of(self._repository)
            server = self._server
        try:
            return [] if server is None else server.children()
        except psutil.NoSuchProcess:
            return []
