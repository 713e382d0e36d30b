"""A backend process that dies while it loads, in a real Triton that waits for it without end."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.engine.serving import Serving, preprocess_of, serving, write_bundle
from tests.engine.test_service import answers
from tests.engine.triton_server import TritonServer, running_triton, wait_until
from transformer_serving.engine.controller.records import DIED, failed_again
from transformer_serving.engine.controller.triton import stuck_loads
from transformer_serving.engine.orphans import STUB
from transformer_serving.engine.silence import is_live

BOUND_S = 90


@contextlib.contextmanager
def supervised(server: TritonServer) -> Iterator[list[int]]:
    """Starts the server again whenever it ends, as supervisord does; how it ended each time."""
    ends: list[int] = []
    stop = threading.Event()

    def keep() -> None:
        while not stop.wait(0.1):
            if server.process is not None and server.process.poll() is not None:
                ends.append(server.process.returncode)
                server.start()

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield ends
    finally:
        stop.set()
        keeper.join()


def loading(server: TritonServer, before: set[int], model: str, version: int) -> psutil.Process:
    """The new backend process of that version, at once: only its first moments are the critical
    ones. The version before may be tried again meanwhile."""
    assert server.process is not None
    triton = psutil.Process(server.process.pid)
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        for process in triton.children():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid in before or not process.name().startswith(STUB):
                    continue
                if any(f"/{model}/{version}/" in word for word in process.cmdline()):
                    return process
    raise AssertionError("no backend process was started")


def children(server: TritonServer) -> set[int]:
    assert server.process is not None
    return {process.pid for process in psutil.Process(server.process.pid).children()}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Serving]:
    with (
        running_triton(tmp_path / "t") as server,
        serving(server, tmp_path, grace_s=600) as running,
    ):
        running.control_plane.add("kept", write_bundle(tmp_path / "a", 101), preprocess_of(101))
        running.wait("kept", BOUND_S, ready=True)
        yield running


def dies_once(server: TritonServer, folder: Path, named: str) -> None:
    """The next backend process that is started with such a word, before Triton hears of it: a load
    whose process has answered once is refused by Triton itself. It lives for a look at it, which
    does not find what model it is of."""
    stub = server.backends / "python" / "triton_python_backend_stub"
    real, dies = folder / stub.name, folder / "dies"
    stub.rename(real)
    dies.touch()
    stub.write_text(
        f"""#!/bin/sh
case "$*" in *{named}*) rm {dies} 2>/dev/null && sleep 2 && kill -9 $$ ;; esac
exec {real} "$@"
"""
    )
    stub.chmod(0o755)


def test_a_process_that_dies_while_it_loads_costs_one_restart_of_triton(
    one: Serving, tmp_path: Path
) -> None:
    server = one.server
    dies_once(server, tmp_path, "/kept/202/")
    with supervised(server) as ends:
        one.control_plane.add("kept", write_bundle(tmp_path / "b", 202), preprocess_of(202))
        wait_until(lambda: bool(ends), BOUND_S)
        assert ends == [-signal.SIGKILL]
        # The last good state first, then the new bundle again, which dies no more.
        one.wait("kept", BOUND_S, ready=True, bundle_version=202, reason=None)
        assert answers(server, "kept", 202, 1.0)
        assert answers(server, "kept", 101, 1.0)
        assert ends == [-signal.SIGKILL]


@pytest.mark.parametrize("name", ["slow", "kept"])
def test_a_slow_load_is_waited_for(
    one: Serving, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever dies meanwhile of what served before, of the same model too. Triton itself answers,
    with each of its eight threads of HTTP, or its container would take it for one that hangs."""
    monkeypatch.setattr(stuck_loads, "NOTICE_S", 0.0)
    server, plane = one.server, one.control_plane
    older = children(server)
    plane.add(name, write_bundle(tmp_path / "b", 202), preprocess_of(202))
    slow = loading(server, older, name, 202)
    slow.suspend()
    assert all(is_live(server.addresses.http) for _ in range(32))
    dead = psutil.Process(min(older))
    dead.kill()
    wait_until(lambda: dead.status() == psutil.STATUS_ZOMBIE, BOUND_S)
    assert one.triton is not None
    assert one.triton.end_stuck_loads() == []
    slow.resume()
    one.wait(name, BOUND_S, ready=True, bundle_version=202)
    assert server.process is not None
    assert server.process.poll() is None


def test_a_model_that_dies_at_every_load_is_tried_more_and_more_rarely() -> None:
    failure, pauses = None, []
    for _ in range(6):
        failure = failed_again(failure, "x", "died", 0.0, DIED)
        pauses.append(failure.retry_at)
    assert pauses == [2, 16, 128, 1024, 3600, 3600]


class Seen:
    """The backend processes of a Triton, as one look after the other finds them."""

    def __init__(self) -> None:
        self.living: dict[int, tuple[str, str]] = {}
        self.dead: frozenset[int] = frozenset()
        self.killed = False

    def look(self) -> tuple[dict[int, tuple[str, str]], frozenset[int]]:
        return self.living, self.dead

    def kill_server(self) -> None:
        self.killed = True


@pytest.mark.parametrize("before", [True, False])
def test_one_that_was_just_ending_is_the_loads_only_if_it_is_younger(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its end and its being a zombie a process has no command line, so no model's name."""
    monkeypatch.setattr(stuck_loads, "NOTICE_S", 0.0)
    seen = Seen()
    loads = stuck_loads.StuckLoads(seen)  # type: ignore[arg-type]
    if before:
        seen.living = {7: ("", "")}
    with loads.watched("m"):
        seen.living = {7: ("", "")}
        assert loads.end() == []
        seen.living, seen.dead = {}, frozenset({7})
        assert loads.end() == ([] if before else ["m"])
    assert seen.killed == (not before)
