"""What `status --watch` makes of a real gateway's page: workers, their ends, restarts, text."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import Server, Session
from tests.gateway.streaming import of_the_rule, settings_of
from tests.gateway.text_serving import TextServing
from tests.text_engine import PROMPT
from transformer_serving.desk.watch.counters import Window, read_page
from transformer_serving.desk.watch.look import Look
from transformer_serving.desk.watch.screen import Screen
from transformer_serving.desk.watch.traffic import History, Traffic

pytestmark = pytest.mark.slow


def look(server: Server, history: History) -> Traffic:
    reply = server.ask("GET", "/metrics")
    assert reply.status == 200, server.log.read_text()
    traffic = history.add(read_page(reply.raw.decode(), time.monotonic()))
    assert traffic is not None
    return traffic


def asked(server: Server, times: int) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda _: server.post("texts", {"text": "tea"}).status, range(times))
        assert set(answers) == {200}


def counted(traffic: Traffic) -> float:
    """Requests of the endpoint in the whole window."""
    return round(traffic.endpoints["texts"].requests_per_s * traffic.seconds, 6)


def wait_until_told(server: Server, answers: int) -> None:
    """The worker that is not asked for the page tells of its own a moment later."""
    row = re.compile(rb'^transformer_serving_requests_total{endpoint="texts",.*} (.*)$', re.M)
    wait_until(
        lambda: sum(map(float, row.findall(server.ask("GET", "/metrics").raw))) == answers, 20
    )


def test_two_workers_one_of_which_ends_and_a_restart(text_serving: TextServing) -> None:
    server = text_serving.gateway("--workers=2").start()
    # Nothing leaves the window, however slow the machine is.
    history = History(Window(1e9))
    try:
        server.wait_for("/health/ready")
        asked(server, 8)
        wait_until_told(server, 8)
        look(server, history)
        asked(server, 30)
        for _ in range(3):
            assert server.post("texts", {"text": 1}).status == 400
        wait_until_told(server, 41)
        traffic = look(server, history)
        row = traffic.endpoints["texts"]
        assert round(row.refused_per_s * traffic.seconds, 6) == 3
        assert row.errors_per_s == 0
        assert row.p50_s is not None
        assert row.p99_s is not None
        assert 0 < row.p50_s <= row.p99_s
        # Each worker says its 400000 once it was asked, if only by its own golden requests.
        wait_until(lambda: look(server, History()).waiting_tokens_limit == 800_000, 120)
        os.kill(server.workers()[0].pid, signal.SIGKILL)
        wait_until(lambda: len(server.workers()) == 2, 120)
        server.wait_for("/health/ready")
        assert counted(look(server, history)) == 33
    finally:
        server.stop()
    assert history.add(None) is None
    server.start()
    try:
        server.wait_for("/health/ready")
        asked(server, 5)
        wait_until_told(server, 5)
        assert counted(look(server, history)) == 38
        assert list(history.requests["texts"])[-2] is None
    finally:
        server.stop()


@pytest.fixture(scope="module")
def text_gateway(session: Session, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One whose endpoint `text` generates by a rule."""
    folder = tmp_path_factory.mktemp("watched")
    with of_the_rule(session, folder) as (own, triton):
        server = own.gateway(**settings_of(triton)).start()
        try:
            server.wait_for("/health/ready")
            yield server
        finally:
            server.stop()


def test_tokens_a_second_and_first_tokens(
    text_gateway: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    history = History()
    body = {"text": PROMPT, "parameters": {"max_new_tokens": 8, "ignore_eos": True}}
    assert text_gateway.post("text", body).status == 200
    look(text_gateway, history)
    for _ in range(5):
        reply = text_gateway.post("text", body)
        assert reply.status == 200, reply
    traffic = look(text_gateway, history)
    text = traffic.endpoints["text"].text
    assert text is not None
    # A golden request of the gateway's own may fall in between.
    assert text.tokens_per_s * traffic.seconds >= 40 - 1e-6
    assert text.first_token_p50_s is not None
    assert text.first_token_p99_s is not None
    assert 0 < text.first_token_p50_s <= text.first_token_p99_s
    assert (text.running, traffic.running_streams_limit) == (0, 128)
    rows = [{"endpoint": "text", "ready": True, "reason": None}]
    status = {"running": True, "left_behind": False, "parts": [], "endpoints": rows}
    seen = Look("2026-11-24T04:00:00+00:00", status, None, None)
    picture = Screen(80, utf8=True).picture(Path("stack"), seen, traffic, history)
    Console(width=80, force_terminal=False).print(picture)
    said = capsys.readouterr().out
    (header,) = [line for line in said.splitlines() if line.startswith("generated text")]
    assert header.split() == [
        "generated", "text", "tok/s", "first", "p50", "ms", "first", "p99", "ms", "running"
    ]  # fmt: skip
    assert "running 0 of 128 sequences" in said
