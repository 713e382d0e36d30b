"""Callers that close their connections, and deadlines that pass, before a real Triton."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import orjson
import pytest

from tests.engine.triton_server import stopped, wait_until
from tests.gateway.conftest import JSON, Server
from tests.gateway.text_serving import TextServing

LEAVERS, TEXTS = 8, 3


def request(body: object, path: str = "texts") -> bytes:
    raw = orjson.dumps(body)
    head = f"POST /serve/{path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw


def figure(server: Server, name: str, **labels: str) -> float:
    """A figure's sum over whatever other labels it has."""
    text = server.ask("GET", "/metrics").raw.decode()
    rows = re.findall(rf"^transformer_serving_{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    return sum(float(value) for found, value in rows if all(one in found for one in wanted))


@contextlib.contextmanager
def busy(server: Server, body: object) -> Iterator[socket.socket]:
    """A call of one second runs; nothing else goes to the engine."""
    calls = figure(server, "call_texts_count")
    with server.connect() as connection:
        connection.sendall(request(body))
        wait_until(lambda: figure(server, "call_texts_count") == calls + 1, 60)
        yield connection
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


@pytest.fixture(scope="module")
def text_serving(own_text_serving: TextServing) -> TextServing:
    """Its service gets another endpoint."""
    return own_text_serving


@pytest.fixture(scope="module")
def server(text_serving: TextServing) -> Iterator[Server]:
    settings = {
        "TRANSFORMER_SERVING_CALLS_IN_FLIGHT": "1",
        # The test holds the engine up on purpose.
        "TRANSFORMER_SERVING_MAX_WAIT_S": "600",
    }
    started = text_serving.gateway(**settings).start()
    try:
        started.wait_for("/health/ready")
        assert started.post("texts", {"text": "tea"}).status == 200
        yield started
    finally:
        started.stop()


SLOW = {"text": "[SLOW] [SLOW]", "timeout_ms": 60_000}


def test_texts_of_callers_that_left_are_not_computed(
    server: Server, text_serving: TextServing
) -> None:
    computed = figure(server, "call_texts_sum")
    body = {"text": ["tea"] * TEXTS}
    # A stopped engine ends no call before all of them are noticed.
    with busy(server, SLOW), stopped(text_serving.triton):
        before = figure(server, "waiting_tokens")
        stays = server.connect()
        stays.sendall(request(body))
        wait_until(lambda: figure(server, "waiting_tokens") > before, 60)
        tokens = figure(server, "waiting_tokens") - before
        leavers = [server.connect() for _ in range(LEAVERS)]
        for connection in leavers:
            connection.sendall(request(body))
        # One whose body has not been read yet leaves without having waited.
        wait_until(lambda: figure(server, "waiting_tokens") == before + (1 + LEAVERS) * tokens, 60)
        for connection in leavers:
            connection.close()
        wait_until(
            lambda: figure(server, "abandoned_requests_total", reason="disconnect") == LEAVERS, 60
        )
    with stays:
        assert stays.recv(100).startswith(b"HTTP/1.1 200")
    wait_until(lambda: figure(server, "waiting_tokens") == 0, 60)
    assert figure(server, "abandoned_texts_total", reason="disconnect") == LEAVERS * TEXTS
    assert figure(server, "requests_total", status="499") == LEAVERS
    assert figure(server, "call_texts_sum") - computed == 1 + TEXTS


def test_texts_whose_deadline_passed_are_not_computed(
    server: Server, text_serving: TextServing
) -> None:
    computed = figure(server, "call_texts_sum")
    late = {"text": ["tea"] * TEXTS, "timeout_ms": 100}
    with busy(server, SLOW), stopped(text_serving.triton), server.connect() as connection:
        connection.sendall(request(late))
        answer = connection.recv(20)
    assert answer.startswith((b"HTTP/1.1 504", b"HTTP/1.1 503"))
    wait_until(lambda: figure(server, "waiting_tokens") == 0, 60)
    assert figure(server, "call_texts_sum") - computed == 1


HOLDING = """
import asyncio
from pathlib import Path


class Preprocess:
    async def process(self, body, state, collect=None):
        while not Path(body["until"]).exists():
            await asyncio.sleep(0.05)
        return {}
"""


def test_a_deadline_runs_while_a_change_is_taken_over(
    server: Server, text_serving: TextServing, tmp_path: Path
) -> None:
    """The host holds what comes up until all that runs has ended, and then lets it go on."""
    code, end = tmp_path / "holding.py", tmp_path / "end"
    code.write_text(HOLDING)

    def add(name: str, file: Path) -> None:
        text_serving.session.clearml_serving(
            "model", "add", "--engine", "custom_async", "--endpoint", name,
            "--preprocess", str(file),
        )  # fmt: skip

    def ask() -> int:
        return server.post("texts", {"text": "tea", "timeout_ms": 400}).status

    add("holding", code)
    end.touch()
    wait_until(lambda: server.post("holding", {"until": str(end)}).status == 200, 120)
    end.unlink()
    with ThreadPoolExecutor() as pool:
        holding = pool.submit(server.post, "holding", {"until": str(end)})
        try:
            add("meanwhile", text_serving.session.folder / "queued.py")
            held: Future[int] | None = None
            while held is None:
                asking = pool.submit(ask)
                held = None if wait([asking], timeout=3).done else asking
        finally:
            end.touch()
        assert held.result() == 504
        assert holding.result().status == 200
    wait_until(lambda: server.post("meanwhile", {}).status != 404, 120)
    assert server.post("texts", {"text": "tea"}).status == 200


def test_a_change_of_the_configuration_waits_for_nobody_who_left(
    server: Server, text_serving: TextServing
) -> None:
    """The host counts requests in and out, and holds up all of them while its count is not zero."""
    for _ in range(3):
        with busy(server, SLOW), server.connect() as leaver:
            leaver.sendall(request({"text": "tea"}))
    text_serving.session.clearml_serving(
        "model", "add", "--engine", "custom", "--endpoint", "later",
        "--preprocess", str(text_serving.session.folder / "queued.py"),
    )  # fmt: skip
    wait_until(lambda: server.post("later", {}).status != 404, 120)
    assert server.post("texts", {"text": "tea"}).status == 200


def test_a_request_that_hangs_in_its_engine_holds_no_change_up(
    server: Server, text_serving: TextServing
) -> None:
    """The host alone would answer nobody until it is over."""

    def others() -> int:
        """What an endpoint of ours answers of itself."""
        return server.ask("POST", "/tei/vectors/tokenize", b'{"inputs": "tea"}', JSON).status

    calls = figure(server, "call_texts_count")
    with server.connect() as connection:
        with stopped(text_serving.triton):
            connection.sendall(request({"text": "tea", "timeout_ms": 600_000}))
            wait_until(lambda: figure(server, "call_texts_count") == calls + 1, 60)
            text_serving.session.clearml_serving(
                "model", "add", "--engine", "custom_async", "--endpoint", "beside",
                "--preprocess", str(text_serving.session.folder / "queued.py"),
            )  # fmt: skip
            while server.post("beside", {}).status != 200:
                assert others() == 200
            # The change took this endpoint's engine object as well: it is built anew.
            assert others() == 200
            connection.settimeout(0.5)
            with pytest.raises(TimeoutError):
                connection.recv(100)
        connection.settimeout(60)
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
