"""Who is taken for one that hangs; a small server plays the tritonserver that does."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.engine.triton_server import wait_until
from tests.free_ports import free_port
from transformer_serving.engine import container, silence
from transformer_serving.engine.container import Container
from transformer_serving.engine.silence import Heartbeat, Liveness

pytestmark = pytest.mark.usefixtures("signals_given_back")

ROOT = Path(__file__).parents[2]
BOUND_S = 60
# Says its number once it listens, and that it is not well, which is an answer.
PLAYED = """
import http.server, os, pathlib, sys

class Ill(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(400)
        self.end_headers()

    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Ill)
with pathlib.Path(sys.argv[2]).open("a") as file:
    print(os.getpid(), file=file)
server.serve_forever()
"""


def test_a_controller_is_silent_only_while_it_could_have_beaten(tmp_path: Path) -> None:
    file = tmp_path / "controller.json"
    heartbeat = Heartbeat(file)
    heartbeat.begin()
    # Not even its first state found room.
    assert [heartbeat.silent_s(now) for now in (0.0, 0.5, 1.0)] == [0.0] * 3
    assert not heartbeat.can_beat()
    file.touch()
    # The time that the last container left, and a clock that was set back, are times like another.
    for beat in (9_000, 1_000):
        os.utime(file, (beat, beat))
        assert [heartbeat.silent_s(now) for now in (1.5, 2.0, 2.5)] == [0.0, 0.5, 1.0]
    # The container was paused for an hour.
    assert heartbeat.silent_s(3_602.5) == 2.0
    assert heartbeat.can_beat()
    assert heartbeat.silent_s(3_603.0) == 2.5
    heartbeat.begin()
    assert heartbeat.silent_s(3_900.0) == 0.0


def test_a_triton_is_silent_only_once_it_has_answered() -> None:
    """A start may take minutes, and a load keeps none from answering."""
    liveness = Liveness("127.0.0.1:1")
    liveness.begin()
    liveness.end()
    assert [liveness.silent_s(now) for now in (0.0, 1.0, 2.0)] == [0.0] * 3
    liveness._come += 1
    assert [liveness.silent_s(now) for now in (2.5, 3.0, 3.5)] == [0.0, 0.5, 1.0]
    # The container was paused for an hour.
    assert liveness.silent_s(3_603.5) == 2.0
    liveness._come += 1
    assert liveness.silent_s(3_604.0) == 0.0
    assert liveness.silent_s(3_604.5) == 0.5
    liveness.begin()
    assert [liveness.silent_s(now) for now in (3_605.0, 3_606.0)] == [0.0, 0.0]


def test_a_triton_that_hangs_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(container, "_TRITON_SILENCE_S", 2.0)
    monkeypatch.setattr(container, "_QUICK_END_S", 0.0)
    monkeypatch.setattr(silence, "_ASK_EVERY_S", 0.05)
    monkeypatch.setattr(silence, "_ANSWER_S", 0.5)
    port, tritons = free_port(), tmp_path / "tritons"
    liveness = Liveness(f"127.0.0.1:{port}")

    def numbers() -> list[int]:
        return [int(line) for line in tritons.read_text().split()] if tritons.exists() else []

    def stop() -> None:
        try:
            wait_until(lambda: bool(numbers()) and liveness._come > 0, BOUND_S)
            os.kill(numbers()[0], signal.SIGSTOP)
            wait_until(lambda: len(numbers()) > 1, BOUND_S)
            assert answered(port) == 400
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    triton = [sys.executable, "-c", PLAYED, str(port), str(tritons)]
    running = Container(triton, ["sleep", "600"], tmp_path, liveness=liveness)
    assert running.run() == 0
    stopping.join()
    assert len(numbers()) == 2
    said = [record.getMessage() for record in caplog.records]
    assert sum(line.startswith("tritonserver hangs: ") for line in said) == 1
    assert any(line.startswith("tritonserver ended with -9 ") for line in said)


def test_triton_is_asked_where_docker_asks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Liveness] = []

    def made(*_: object, liveness: Liveness, **__: object) -> SimpleNamespace:
        given.append(liveness)
        return SimpleNamespace(run=lambda: 0)

    monkeypatch.setattr(container, "refuse_difference", lambda: None)
    monkeypatch.setattr(container, "STATE", tmp_path)
    monkeypatch.setattr(container, "Container", made)
    with pytest.raises(SystemExit, match="^0$"):
        container.main()
    dockerfile = (ROOT / "docker" / "triton" / "Dockerfile").read_text("utf-8")
    assert f'"http://{given[0]._address}/v2/health/ready"' in dockerfile


def answered(port: int) -> int:
    with closing(HTTPConnection("127.0.0.1", port, timeout=BOUND_S)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().status
