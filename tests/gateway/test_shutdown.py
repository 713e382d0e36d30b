"""SIGTERM: not ready first, what runs is finished, with one worker and with several."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import JSON, Server, Session, running_session
from transformer_serving.gateway import shutdown
from transformer_serving.gateway.server.command import main
from transformer_serving.gateway.shutdown import _SAME_SIGNAL_S, Shutdown


@pytest.fixture(
    params=["launcher", "two workers", "uvicorn"], ids=lambda name: name.replace(" ", "-")
)
def running(request: pytest.FixtureRequest, session: Session) -> Iterator[Server]:
    settings = {
        "TRANSFORMER_SERVING_DRAIN_SECONDS": "60", "TRANSFORMER_SERVING_GRACEFUL_SECONDS": "120",
    }  # fmt: skip
    server = {
        "launcher": lambda: session.gateway(**settings),
        "two workers": lambda: session.gateway("--workers=2", **settings),
        "uvicorn": lambda: session.uvicorn("transformer_serving.gateway.app:app", **settings),
    }[request.param]()
    server.start()
    try:
        yield server.wait_for("/health/ready")
    finally:
        server.stop()


def tell_again(server: Server) -> None:
    """Now, without the drain that the first SIGTERM began, which the server has heard."""
    # One that comes sooner is taken for the first.
    time.sleep(2 * _SAME_SIGNAL_S)
    server.process.send_signal(signal.SIGTERM)


def test_a_slow_request_is_finished(running: Server, tmp_path: Path) -> None:
    """It ends when the test lets it, after connections on which nothing runs were closed."""
    body = orjson.dumps({"text": "a", "held_in": str(tmp_path)})
    with ThreadPoolExecutor() as pool, running.connect() as idle:
        ask = partial(running.ask, "POST", "/serve/ours", body, JSON, timeout_s=240)
        slow = [pool.submit(ask) for _ in range(4)]
        wait_until(lambda: len(list(tmp_path.iterdir())) == 4, 60)
        running.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        stopping = {"ready": False, "reason": "shutting down"}
        # One of several workers may have become ready later, or hears of the signal later.
        while (ready := running.ask("GET", "/health/ready")).json != stopping:
            assert time.monotonic() < deadline, ready.json
            time.sleep(0.02)
        assert ready.status == 503
        assert running.post("ours", {"text": "late, but the listener is open"}).status == 200
        # Kept connections are given up by an answer, not under a request.
        wait_until(lambda: "connection" in running.post("ours", {"text": "b"}).headers, 30)
        tell_again(running)
        idle.settimeout(120)
        while idle.recv(1000):
            pass
        (tmp_path / "end").touch()
        assert [reply.result().status for reply in slow] == [200] * 4
    running.process.wait(120)
    with pytest.raises(ConnectionError):
        running.connect()


def test_a_signal_to_the_whole_group_is_one(session: Session) -> None:
    """As of systemd, supervisord and dumb-init: each worker hears it twice, and drains."""
    server = session.gateway("--workers=2", TRANSFORMER_SERVING_DRAIN_SECONDS="600").start()
    try:
        wait_until(lambda: len(re.findall(r"worker \d+ serves", server.log.read_text())) == 2, 120)
        for worker in server.workers():
            worker.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        for _ in range(20):
            assert server.post("ours", {"text": "the listener is open"}).status == 200
            time.sleep(0.1)
        # A second one, later, still means now.
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
    finally:
        server.stop()


def test_a_signal_in_the_middle_of_a_line_of_the_log_is_heard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python's buffers refuse a second line then: what tells of the signal must not lose it."""
    asked: list[Any] = []
    loop: Any = SimpleNamespace(
        call_soon_threadsafe=lambda what, *_: asked.append(what), call_later="later"
    )

    def refuse(*_: object) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    monkeypatch.setattr(shutdown.log, "info", refuse)
    told = Shutdown(60.0)
    told._handler(loop, lambda *_: None)(signal.SIGTERM, None)
    assert told.leaving
    assert asked == ["later", refuse]


@pytest.mark.parametrize(("gave_up", "seconds"), [(None, 10.0), (3.0, 7.0), (30.0, 0.0)])
async def test_giving_up_takes_no_more_than_leaving_has(
    monkeypatch: pytest.MonkeyPatch, gave_up: float | None, seconds: float
) -> None:
    """By the clock of Shutdown alone; what would end this process is not started."""
    now, asked = [100.0], []

    def timer(after: float, *_: Any) -> Any:
        asked.append(after)
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr(threading, "Timer", timer)
    monkeypatch.setattr(shutdown, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(shutdown, "LEAVE_S", 10.0)
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        told = Shutdown(0.0)
        told.arm()
        signal.raise_signal(signal.SIGTERM)
        if gave_up is not None:
            told.give_up()
            now[0] += gave_up
        told.leave()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert asked == [seconds]


def test_what_runs_for_longer_than_the_setting_says_is_unavailable(
    session: Session, tmp_path: Path
) -> None:
    server = session.gateway(TRANSFORMER_SERVING_GRACEFUL_SECONDS="1").start()
    try:
        server.wait_for("/health/ready")
        with ThreadPoolExecutor() as pool:
            slow = pool.submit(server.post, "ours", {"text": "a", "held_in": str(tmp_path)})
            wait_until(lambda: any(tmp_path.iterdir()), 60)
            server.process.send_signal(signal.SIGTERM)
            reply = slow.result()
        assert (reply.status, reply.json["code"]) == (503, "unavailable")
        assert server.process.wait(60) == 0
    finally:
        server.stop()


@pytest.mark.parametrize(("stop", "fits"), [("640", True), ("639", False), ("", True)])
def test_a_drain_that_docker_would_cut_is_no_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stop: str, fits: bool
) -> None:
    """640 s: the drain, 30 s for what runs, 10 s to leave. Nobody else says when it is killed."""
    monkeypatch.setenv("TRANSFORMER_SERVING_DRAIN_SECONDS", "600")
    monkeypatch.setenv("TRANSFORMER_SERVING_STOP_SECONDS", stop)
    # Of what is looked at next.
    monkeypatch.setenv("TRANSFORMER_SERVING_KEYS_FILE", "/nowhere/keys.json")
    with pytest.raises(SystemExit) as ended:
        main(["--port=0"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert ("/nowhere/keys.json" in said) == fits
    assert ("set that to 640 or more" in said) != fits


@pytest.mark.long
@pytest.mark.parametrize("started", [True, False], ids=["serving", "starting"])
def test_a_control_plane_that_hangs_keeps_no_worker(tmp_path: Path, started: bool) -> None:
    with running_session(tmp_path) as session:
        server = session.gateway("--workers=2", "--graceful-seconds=1").start()
        hung = session.control_plane.process
        try:
            mark, count = (r"worker \d+ serves", 2) if started else ("created new task", 1)
            wait_until(lambda: len(re.findall(mark, server.log.read_text())) >= count, 120)
            hung.send_signal(signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(60) == 0
        finally:
            hung.send_signal(signal.SIGCONT)
            server.stop()
