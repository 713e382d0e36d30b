"""Workers that are killed are replaced at once, whatever the others do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import Server, Session
from transformer_serving.contract.file_stamp import stamp_of
from transformer_serving.gateway.server import worker
from transformer_serving.gateway.server.listener import listen_on_socket

# Of a worker that was killed: the limit for one that hangs is a minute.
SOON_S = 45
HUNG_S = 120
STARTED = re.compile(r"worker \d+ serves")
SLOW_HEAD = (
    b"POST /serve/ours HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    b"content-length: 13\r\n\r\n"
)
SLOW_BODY = b'{"text": "a"}'
IN_FLIGHT = re.compile(rb'gateway_requests_in_flight{endpoint="ours"} 1\.0')


def replaced(server: Server, dead: psutil.Process) -> psutil.Process:
    """The new worker in the place of the one that is killed now."""
    before = server.workers()
    started = time.monotonic()
    dead.send_signal(signal.SIGKILL)
    wait_until(lambda: [one for one in server.workers() if one not in before], SOON_S)
    print(f"replaced after {time.monotonic() - started:.2f} s")  # noqa: T201
    return next(one for one in server.workers() if one not in before)


def test_a_killed_worker_is_replaced_beside_one_that_hangs(session: Session) -> None:
    server = session.gateway("--workers=2").start().wait_for("/health/ready")
    hanging, killed = server.workers()
    hanging.send_signal(signal.SIGSTOP)
    try:
        # The second one is killed in its start, before it can answer the question for its health.
        replaced(server, replaced(server, killed))
        assert hanging in server.workers()
    finally:
        hanging.send_signal(signal.SIGCONT)
        server.wait_for("/health/ready")
        server.stop()


@pytest.mark.long
@pytest.mark.parametrize("started", [True, False])
def test_workers_leave_when_their_parent_was_killed(session: Session, started: bool) -> None:
    """Else they would keep the port from the parent that comes next. The control plane hangs."""
    server = session.gateway("--workers=2").start()
    wait_until(lambda: len(STARTED.findall(server.log.read_text())) >= (2 if started else 1), 120)
    workers = server.workers()
    assert len(workers) == 2
    session.control_plane.process.send_signal(signal.SIGSTOP)
    try:
        server.process.kill()
        wait_until(lambda: not any(worker.is_running() for worker in workers), SOON_S)
    finally:
        session.control_plane.process.send_signal(signal.SIGCONT)
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_workers_that_start_at_once_have_tasks_of_their_own(session: Session) -> None:
    """Without CLEARML_TASK_NO_REUSE two of three have the same one in most starts."""
    environment = {**session.environment}
    del environment["CLEARML_TASK_NO_REUSE"]
    server = replace(session, environment=environment).gateway("--workers=3").start()
    try:
        made = re.compile(r"^ClearML Task: (.*) task id=(\w+)$", re.MULTILINE)
        wait_until(lambda: len(made.findall(server.log.read_text())) >= 3, 120)
        found = made.findall(server.log.read_text())
    finally:
        server.stop()
    assert {what for what, _ in found} == {"created new"}
    assert len({task for _, task in found}) == 3


@pytest.mark.long
def test_a_worker_that_hangs_is_replaced(session: Session) -> None:
    server = session.gateway("--workers=2").start().wait_for("/health/ready")
    try:
        wait_until(lambda: len(STARTED.findall(server.log.read_text())) == 2, 120)
        hanging, _ = server.workers()
        hanging.send_signal(signal.SIGSTOP)
        wait_until(lambda: hanging not in server.workers(), HUNG_S)
        wait_until(lambda: len(STARTED.findall(server.log.read_text())) == 3, 120)
        assert f"worker {hanging.pid} was silent" in server.log.read_text()
    finally:
        server.stop()


def test_all_are_renewed_at_sighup_while_requests_go_on(session: Session) -> None:
    server = session.gateway("--workers=2").start().wait_for("/health/ready")
    answers = set()

    def renewed() -> bool:
        answers.add(server.post("ours", {"text": "a"}).status)
        return len(server.workers()) == 2 and not set(before) & set(server.workers())

    try:
        wait_until(lambda: len(STARTED.findall(server.log.read_text())) == 2, 120)
        before = server.workers()
        server.process.send_signal(signal.SIGHUP)
        wait_until(renewed, 120)
        assert answers == {200}
    finally:
        assert server.stop() == 0


def test_a_lone_worker_is_renewed_without_a_moment_that_is_not_ready(session: Session) -> None:
    """Its successor takes no request before its first golden round is done."""
    server = session.gateway().start().wait_for("/health/endpoints/ours")
    told = set()
    try:
        for _ in range(2):
            before = server.workers()
            server.process.send_signal(signal.SIGHUP)
            end = time.monotonic() + 120
            while set(before) & set(server.workers()):
                assert time.monotonic() < end, server.stacks()
                for path in ("/health/ready", "/health/endpoints/ours"):
                    told.add((path, server.ask("GET", path).status))
        assert told == {("/health/ready", 200), ("/health/endpoints/ours", 200)}
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("told_to_leave", [False, True])
async def test_nobody_waits_without_end_for_one_to_be_ready(
    told_to_leave: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, worker.log.name)
    monkeypatch.setattr(worker, "_READY_S", 60.0 if told_to_leave else 0.2)
    told = asyncio.Event()
    if told_to_leave:
        told.set()
    app = SimpleNamespace(not_ready=lambda: "first golden requests under way")
    async with asyncio.timeout(30):
        await worker._readiness(app, told)
    assert ("first golden requests under way" in caplog.text) is not told_to_leave


def test_a_renewal_that_fails_is_tried_again(session: Session) -> None:
    server = session.gateway().start().wait_for("/health/ready")
    try:
        (before,) = server.workers()
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(server.workers()) == 2, SOON_S)
        for one in server.workers():
            if one != before:
                one.kill()
        wait_until(lambda: server.workers() and before not in server.workers(), 120)
        assert "ended in its start; the old ones serve on" in server.log.read_text()
        assert server.ask("GET", "/health/ready").status == 200
    finally:
        assert server.stop() == 0


def test_one_that_cannot_start_ends_it(session: Session) -> None:
    server = session.gateway(TRANSFORMER_SERVING_TRUSTED_KEYS="no key at all").start()
    assert server.process.wait(120) == 3
    log = server.log.read_text()
    assert "TRANSFORMER_SERVING_TRUSTED_KEYS" in log
    assert "no worker could be started" in log


def test_another_ones_port_is_an_error(session: Session) -> None:
    server = session.gateway()
    with socket.create_server(("127.0.0.1", server.port)):
        server.start()
        assert server.process.wait(60) == 1
    assert "error: cannot listen there: Address already in use" in server.log.read_text()


def test_a_unix_socket_in_the_place_of_one_that_was_left(session: Session, tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    server = session.gateway(f"--uds={path}").start()
    try:
        wait_until(lambda: b" 200 " in over(path, b"GET /health/ready"), 120)
        assert over(path, b"POST /serve/ours").startswith(b"HTTP/1.1 400")
    finally:
        assert server.stop() == 0
    assert not path.exists()


def test_who_still_listens_on_a_socket_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "gateway.sock"
    last = listen_on_socket(path, 8)
    threading.Timer(0.5, last.close).start()
    with listen_on_socket(path, 8) as listener, socket.socket(socket.AF_UNIX) as asker:
        assert last.fileno() == -1
        asker.connect(str(path))
        listener.accept()[0].close()


def test_a_leaving_gateway_leaves_its_successors_socket(session: Session, tmp_path: Path) -> None:
    """The first one has closed its listener and still answers when the second one comes."""
    path = tmp_path / "gateway.sock"
    patient = {"TRANSFORMER_SERVING_GRACEFUL_SECONDS": "300"}
    first, second = (session.gateway(f"--uds={path}", **patient) for _ in range(2))
    first.start()
    try:
        wait_until(lambda: b" 200 " in over(path, b"GET /health/ready"), 120)
        with socket.socket(socket.AF_UNIX) as slow:
            slow.connect(str(path))
            slow.sendall(SLOW_HEAD + SLOW_BODY[:1])
            wait_until(lambda: IN_FLIGHT.search(page_over(path)), SOON_S)
            first.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not over(path, b"GET /health/live"), SOON_S)
            before = stamp_of(path)
            second.start()
            wait_until(lambda: stamp_of(path) not in (before, None), SOON_S)
            assert first.process.poll() is None
            slow.sendall(SLOW_BODY[1:])
            assert slow.recv(100).startswith(b"HTTP/1.1 200")
            assert first.process.wait(SOON_S) == 0
        assert path.is_socket()
        wait_until(lambda: b" 200 " in over(path, b"GET /health/ready"), 120)
    finally:
        first.stop()
        second.stop()
    assert not path.exists()


def page_over(path: Path) -> bytes:
    """The figures, to their end."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(65536), b""))


def over(path: Path, line: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
        connection.connect(str(path))
        connection.sendall(line + b" HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n")
        return connection.recv(65536)
    return b""
