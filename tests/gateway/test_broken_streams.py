"""Streams under which something dies or is exchanged: each ends with a word, or goes on."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import JSON, STOCK_APP, Server, Session, running
from tests.gateway.streaming import Streaming, running_streaming
from tests.text_engine import event_of, fields, tokenizer, write_model
from transformer_serving.desk.bundle import preprocess_file

pytestmark = pytest.mark.long
# Half a minute of tokens: all have begun, and none has ended, when something dies under them.
SLOW = {"text": "slow slow w20", "parameters": {"max_new_tokens": 32}, "stream": True}
# Until a file `on` is there.
HELD = {**SLOW, "text": "hang w20"}
AT_ONCE = 6
# What a busy machine may need.
PATIENCE_S = 120
# For what is silent on purpose: it is given up after the test.
PATIENT = {"TRANSFORMER_SERVING_TOKEN_GAP_S": "500"}


class Stream:
    """One stream over a connection of its own, read up to its first event."""

    def __init__(self, port: int, body: Any) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self.connection.request("POST", "/serve/text", json.dumps(body), JSON)
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        self.version = self.answer.headers["x-bundle-version"]
        self.begun = self.answer.readline() + self.answer.readline()

    def events(self) -> list[Any]:
        """All of them, to the end. Raises HTTPException where the connection is cut."""
        try:
            raw = self.begun + self.answer.read()
        finally:
            self.answer.close()
            self.connection.close()
        return [event_of(row) for row in raw.decode().split("\n\n") if row]


def begun(server: Server, body: Any = SLOW) -> list[Stream]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda _: Stream(server.port, body), range(AT_ONCE)))


def ends(streams: list[Stream]) -> list[Any]:
    """The last event of each. Fails by their time limit where one hangs."""
    with ThreadPoolExecutor(len(streams)) as pool:
        return list(pool.map(lambda stream: stream.events()[-1], streams))


def connections(worker: psutil.Process, port: int) -> int:
    """Callers of the port that this worker serves."""
    rows = worker.net_connections(kind="tcp")
    return sum(row.status == psutil.CONN_ESTABLISHED and row.laddr.port == port for row in rows)


def serves(server: Server) -> bool:
    with contextlib.suppress(OSError):
        reply = server.post("text", {"text": "w20", "parameters": {"max_new_tokens": 2}})
        return reply.status == 200 and bool(reply.json["text"] == "w20 w20 w20")
    return False


def loaded(streaming: Streaming, *, again: bool = False) -> None:
    """Have Triton load the model, as the controller does where it is missing or dead."""
    client = streaming.triton.client()
    if again:
        client.unload_model("text")
        wait_until(lambda: not client.is_model_ready("text"), PATIENCE_S)
    client.load_model("text")
    client.close()


@contextlib.contextmanager
def released(streaming: Streaming) -> Iterator[Callable[[], None]]:
    """What lets the held streams go on."""
    on = streaming.triton.repository / "text" / "on"
    try:
        yield on.touch
    finally:
        on.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def broken(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streaming]:
    folder = tmp_path_factory.mktemp("broken")
    gap = {"TRANSFORMER_SERVING_TOKEN_GAP_S": "3"}
    with running_streaming(session, folder, **gap) as made:
        yield made


@pytest.fixture
def streaming(broken: Streaming) -> Streaming:
    """Well, also where the test before failed and left it otherwise."""
    servers = broken.servers.values()
    if not all(map(serves, servers)):
        broken.triton.kill()
        broken.triton.start()
        loaded(broken)
        for server in servers:
            wait_until(lambda server=server: serves(server), PATIENCE_S)
    return broken


@pytest.fixture(params=["gateway", "stock"])
def server(request: pytest.FixtureRequest, streaming: Streaming) -> Server:
    return streaming.servers[request.param]


def stubs(streaming: Streaming) -> list[psutil.Process]:
    assert streaming.triton.process is not None
    return psutil.Process(streaming.triton.process.pid).children(recursive=True)


def test_a_killed_model_process_ends_them_and_is_reloaded(
    server: Server, streaming: Streaming
) -> None:
    """Triton says nothing of it to a stream that has begun: the limit on the gap does."""
    streams = begun(server)
    for stub in stubs(streaming):
        stub.kill()
    for name, error in ends(streams):
        assert name == "error"
        assert error["code"] in ("unavailable", "engine_failed")
        assert set(error) == {"code", "message", "field", "limit", "got"}
    assert server.post("text", {"text": "w20"}).status == 503
    loaded(streaming, again=True)
    wait_until(lambda: serves(server), PATIENCE_S)


def test_a_killed_triton_ends_them_at_once(server: Server, streaming: Streaming) -> None:
    streams = begun(server)
    streaming.triton.kill()
    try:
        for name, error in ends(streams):
            assert (name, error["code"]) == ("error", "unavailable")
        assert server.post("text", {"text": "w20"}).status == 503
    finally:
        streaming.triton.start()
    loaded(streaming)
    wait_until(lambda: serves(server), PATIENCE_S)


def test_a_stopped_triton_ends_them(server: Server, streaming: Streaming) -> None:
    assert streaming.triton.process is not None
    before = streaming.cancelled()
    streams = begun(server)
    streaming.triton.process.send_signal(signal.SIGSTOP)
    stopped = stubs(streaming)
    for stub in stopped:
        stub.suspend()
    try:
        assert {(name, error["code"]) for name, error in ends(streams)} == {
            ("error", "unavailable")
        }
    finally:
        for stub in stopped:
            stub.resume()
        streaming.triton.process.send_signal(signal.SIGCONT)
    # It learns of each that was given up.
    wait_until(lambda: streaming.cancelled() == before + AT_ONCE, PATIENCE_S)
    wait_until(lambda: serves(server), PATIENCE_S)


def test_a_killed_worker_takes_only_its_own(streaming: Streaming) -> None:
    """Their connections are cut before the end of the body, which no client takes for an answer."""
    server = streaming.session.gateway("--workers=2", **streaming.settings(**PATIENT))
    server.start()
    try:
        server.wait_for("/health/ready")
        before = streaming.cancelled()
        with released(streaming) as release:
            streams = [*begun(server, HELD), *begun(server, HELD)]
            taken = killed_worker(server, streams)
            # Triton learns of each that was cut.
            wait_until(lambda: streaming.cancelled() == before + taken, PATIENCE_S)
            release()
            found = [last(stream) for stream in streams]
        assert (found.count(None), found.count("[DONE]")) == (taken, len(streams) - taken)
        wait_until(lambda: len(server.workers()) == 2, PATIENCE_S)
        wait_until(lambda: serves(server), PATIENCE_S)
    finally:
        server.stop()


def killed_worker(server: Server, streams: list[Stream]) -> int:
    """How many of the streams the worker had that was killed: the one that had most."""
    workers = server.workers()
    assert len(workers) == 2
    # They share a listener: which of them takes a connection is the kernel's choice.
    taken = {worker.pid: connections(worker, server.port) for worker in workers}
    assert sum(taken.values()) == len(streams)
    os.kill(max(taken, key=lambda pid: taken[pid]), signal.SIGKILL)
    return max(taken.values())


def last(stream: Stream) -> Any:
    """Its last event, None where it was cut."""
    with contextlib.suppress(http.client.HTTPException, ConnectionError):
        return stream.events()[-1]
    return None


def test_an_update_lets_running_streams_end_on_the_old_bundle(
    streaming: Streaming, tmp_path: Path
) -> None:
    settings = streaming.settings(**PATIENT)
    ways = streaming.session.gateway(**settings), streaming.session.uvicorn(STOCK_APP, **settings)
    with running(*ways) as both, released(streaming) as release:
        servers = list(both.values())
        streams = [stream for server in servers for stream in begun(server, HELD)]
        write_model(streaming.triton.repository, "text", 78)
        loaded(streaming)
        added(streaming, tmp_path, 78)
        for server in servers:
            wait_until(lambda server=server: version(server) == "78", PATIENCE_S)
        release()
        assert {stream.version for stream in streams} == {"77"}
        for stream in streams:
            *events, end, done = stream.events()
            assert (end["finish_reason"], done) == ("length", "[DONE]")
            assert "".join(row["text"] for row in events) == " hang w20" * 16


def added(streaming: Streaming, folder: Path, bundle: int) -> None:
    """The endpoint with that bundle's code."""
    new = folder / "text.py"
    new.write_text(
        preprocess_file.build(json.dumps(fields() | {"bundle_version": bundle}), tokenizer())
    )
    streaming.session.clearml_serving(
        "model", "add", "--engine", "triton", "--endpoint", "text", "--preprocess", str(new),
        "--input-size", "[1]", "--input-type", "int32", "--input-name", "a",
        "--output-size", "[1]", "--output-type", "float32", "--output-name", "b",
    )  # fmt: skip


def version(server: Server) -> str | None:
    reply = server.post("text", {"text": "w20", "parameters": {"max_new_tokens": 2}})
    assert reply.status == 200
    return reply.headers["x-bundle-version"]


def test_a_long_text_without_a_stream_holds_no_change_up(
    streaming: Streaming, tmp_path: Path
) -> None:
    """The host alone would answer nobody until it is whole."""
    server = streaming.session.gateway(**streaming.settings(**PATIENT)).start()
    silent = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    try:
        server.wait_for("/health/ready")
        silent.request("POST", "/serve/text", json.dumps({"text": "hang w20"}), JSON)
        write_model(streaming.triton.repository, "text", 79)
        loaded(streaming)
        added(streaming, tmp_path, 79)
        wait_until(lambda: version(server) == "79", PATIENCE_S)
        # It is waited for to this moment.
        silent.sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            silent.getresponse()
    finally:
        silent.close()
        server.stop()


def test_it_is_counted_again_when_it_is_whole(streaming: Streaming) -> None:
    """A change that comes afterwards waits for nobody, and is waited for by nobody."""
    server = streaming.session.gateway(**streaming.settings()).start()
    try:
        server.wait_for("/health/ready")
        for text in ("slow w20", "fail w20", "full w20"):
            server.post("text", {"text": text, "parameters": {"max_new_tokens": 8}})
        before = version(server)
        streaming.session.clearml_serving(
            "model", "canary", "--endpoint", "also", "--weights", "1", "--input-endpoints", "text"
        )
        wait_until(lambda: server.post("also", {"text": "w20"}).status == 200, PATIENCE_S)
        assert version(server) == before
    finally:
        server.stop()
