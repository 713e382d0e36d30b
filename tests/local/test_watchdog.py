"""The watchdog over a real process that plays a part: what it ends, and what it leaves alone."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.engine.triton_server import wait_until
from tests.free_ports import free_port
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.local import watchdog
from transformer_serving.desk.local.record import Ports, StackRecord
from transformer_serving.desk.local.supervision import Process
from transformer_serving.desk.local.watchdog import Watch, Watchdog
from transformer_serving.gateway.server import supervisor, worker

PART = "control-plane"
# Answers that it is not well, and nothing while the file is there.
PLAYED = """
import http.server, pathlib, sys, time

class Ill(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        while silent.exists():
            time.sleep(0.05)
        self.send_response(503)
        self.end_headers()

    def log_message(self, *_):
        pass

silent = pathlib.Path(sys.argv[2])
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Ill).serve_forever()
"""
_ATTACH, _DETACH = 16, 17  # of ptrace(2)
_ANY_THREAD = 0x40000000  # waitpid(2)'s __WALL


@dataclass
class Played:
    process: subprocess.Popen[bytes]
    silent: Path
    looks: Watchdog
    part: str = PART

    def look(self) -> None:
        self.looks.look({self.part: Process(self.part, "RUNNING", self.process.pid, 1.0)})

    @property
    def watch(self) -> Watch:
        return self.looks.watches[self.part]

    def until(self, condition: Callable[[], bool]) -> None:
        """Looks, until it holds."""

        def held() -> bool:
            self.look()
            return condition()

        wait_until(held, 60)

    def ended(self) -> bool:
        return self.process.poll() == -signal.SIGKILL

    def lives(self) -> bool:
        return self.process.poll() is None


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Played]:
    monkeypatch.setattr(watchdog, "SILENT_PROBES", 3)
    monkeypatch.setattr(watchdog, "PROBE_TIMEOUT_S", 0.5)
    port, silent = free_port(), tmp_path / "silent"
    process = subprocess.Popen(
        [sys.executable, "-c", PLAYED, str(port), str(silent)], start_new_session=True
    )
    ports = Ports(control_plane=port, inference=port)
    looks = Watchdog(tmp_path, StackRecord(ports, "a", "b"))
    try:
        yield Played(process, silent, looks)
    finally:
        process.kill()
        process.wait()
        looks.pool.shutdown()


@pytest.mark.slow
def test_one_that_no_longer_answers_is_ended_after_some_probes(played: Played) -> None:
    """That it is not well is an answer."""
    played.until(lambda: played.watch.answered)
    played.silent.touch()
    played.until(lambda: played.watch.missed == watchdog.SILENT_PROBES - 1)
    assert played.lives()
    played.until(played.ended)


@pytest.mark.slow
def test_a_worker_that_may_be_loading_has_more_of_them(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LOADING_PROBES", 2 * watchdog.SILENT_PROBES)
    played.part = "inference"
    played.until(lambda: played.watch.answered)
    played.silent.touch()
    played.until(lambda: played.watch.missed == watchdog.LOADING_PROBES - 1)
    assert played.lives()
    played.until(played.ended)


def test_a_worker_has_as_long_as_the_gateway_grants_it() -> None:
    granted = worker._LOOP_HUNG_S + supervisor._HUNG_S
    assert granted < watchdog.LOADING_PROBES * watchdog.PROBE_TIMEOUT_S


@pytest.mark.slow
def test_one_that_has_not_answered_yet_may_take_longer(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.silent.touch()
    played.until(lambda: played.watch.missed > watchdog.SILENT_PROBES)
    assert played.lives()
    monkeypatch.setattr(watchdog, "START_S", 0.0)
    played.until(played.ended)


def test_a_probe_that_fails_is_no_answer_and_the_next_one_comes(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a heartbeat on a disk that is away for a moment; the parts after it are looked at."""
    beats = iter(range(1_000))

    def beat(path: Path) -> float:
        number = next(beats)
        if number == 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return float(number)

    monkeypatch.setattr(watchdog, "_beat", beat)
    monkeypatch.setattr(watchdog, "PROBE_TIMEOUT_S", 0.01)
    pid, watches = played.process.pid, played.looks.watches
    runs = {name: Process(name, "RUNNING", pid, 1.0) for name in ("controller", "inference")}
    played.looks.look(runs)
    failed = watches["controller"].probe
    assert failed is not None
    assert isinstance(failed.exception(timeout=60), OSError)
    del watches["inference"]
    played.looks.look(runs)
    assert watches["controller"].missed == 1
    assert watches["inference"].probe is not None

    def answered() -> bool:
        played.looks.look(runs)
        return watches["controller"].answered

    wait_until(answered, 60)
    assert watches["controller"].missed == 0
    assert played.lives()


def test_the_file_of_the_process_before_is_no_answer_of_one_that_starts(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be ended after some probes: a controller takes longer to begin on a slow machine."""
    monkeypatch.setattr(watchdog, "PROBE_TIMEOUT_S", 0.01)
    beats = {"now": 1.0}
    monkeypatch.setattr(watchdog, "_beat", lambda path: beats["now"])
    played.part = "controller"
    played.until(lambda: played.watch.missed > 2 * watchdog.SILENT_PROBES)
    assert not played.watch.answered
    assert played.lives()
    beats["now"] = 2.0
    played.until(lambda: played.watch.answered)


def test_a_supervisor_that_is_not_reached_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A cleaner of temporary files took its socket: without a line nobody would see that nothing is
    watched any more."""
    looks = Watchdog(tmp_path, StackRecord(Ports(), "a", "b"))
    for _ in range(2):
        # As in the moment in which a supervisor leaves.
        for _ in range(watchdog.LOST_LOOKS - 1):
            looks.look({})
        assert not caplog.messages
        looks.look({"triton": Process("triton", "STOPPED", None, 0.0)})
    for _ in range(2 * watchdog.LOST_LOOKS):
        looks.look({})
    [line] = caplog.messages
    assert "supervisor.sock, so that nothing" in line
    assert line.endswith(f"transformer-serving up --state {tmp_path}")


def test_one_that_cannot_be_started_keeps_no_other_from_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked = []

    class Failing:
        def start_part(self, name: str) -> None:
            asked.append(name)
            if name == "triton":
                raise Failure("triton could not be started: SPAWN_ERROR")

    watchdog.start_overdue(Failing(), ["triton", "inference"])
    assert asked == ["triton", "inference"]
    assert "triton could not be started: SPAWN_ERROR" in caplog.text


def test_one_that_is_stopped_is_ended_at_the_second_look(played: Played) -> None:
    played.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(played) == psutil.STATUS_STOPPED, 60)
    played.look()
    assert played.lives()
    played.look()
    wait_until(played.ended, 60)


@pytest.mark.slow
def test_what_a_debugger_holds_is_left_alone(played: Played) -> None:
    played.until(lambda: played.watch.answered)
    with held_by_a_debugger(played.process.pid):
        assert state_of(played) == psutil.STATUS_TRACING_STOP
        end = time.monotonic() + 2 * watchdog.SILENT_PROBES * watchdog.PROBE_TIMEOUT_S
        while time.monotonic() < end:
            played.look()
            time.sleep(0.05)
        assert played.lives()
    played.until(lambda: played.watch.answered)


def state_of(played: Played) -> str:
    return psutil.Process(played.process.pid).status()


@contextmanager
def held_by_a_debugger(pid: int) -> Iterator[None]:
    """Skips where this user may not trace a process of its own."""
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    trace.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    if trace(_ATTACH, pid, None, None):
        pytest.skip(f"a debugger cannot be played here: {os.strerror(ctypes.get_errno())}")
    os.waitpid(pid, _ANY_THREAD)
    try:
        yield
    finally:
        trace(_DETACH, pid, None, None)
