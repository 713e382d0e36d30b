"""An engine that begins to answer wrongly under the real app: told for its endpoint, alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.triton_server import wait_until
from tests.gateway.conftest import Server
from tests.gateway.figures import Samples, of, read
from tests.gateway.quick_rounds import with_quick_rounds
from tests.gateway.text_serving import GOLDEN, TextServing
from tests.triton_text import VERSION, load

ROUND_S = 120


@pytest.fixture(scope="module")
def text_serving(own_text_serving: TextServing) -> TextServing:
    """One of its models is changed."""
    return own_text_serving


@pytest.fixture
def server(text_serving: TextServing) -> Iterator[Server]:
    running = with_quick_rounds(text_serving.gateway("--workers=2")).start()
    try:
        yield running.wait_for("/health/ready")
    finally:
        running.stop()


def row(server: Server, name: str) -> tuple[int, Any]:
    reply = server.ask("GET", f"/health/endpoints/{name}")
    return reply.status, reply.json


def figures(server: Server) -> Samples:
    return read(server.ask("GET", "/metrics").raw.decode())


def by_worker(server: Server, endpoint: str) -> list[float]:
    name = "gateway_golden_ok"
    return [
        value
        for (found, labels), value in figures(server).items()
        if found == name and ("endpoint", endpoint) in labels
    ]


def rounds_find(server: Server, ok: bool) -> None:
    """Wait until a round of each worker has compared the answer, and found it right or wrong.

    A round that met the model while it was loaded again has found something else.
    """
    wanted = (200 if ok else 503, True)

    def found() -> bool:
        if by_worker(server, "swayed") != [ok, ok]:
            return False
        # Whichever worker answers: twenty new connections.
        told = (row(server, "swayed") for _ in range(20))
        return all((status, one.get("compared")) == wanted for status, one in told)

    wait_until(found, ROUND_S)


def test_a_wrong_answer_is_told_by_a_round_that_nobody_asked_for(
    server: Server, text_serving: TextServing
) -> None:
    rounds_find(server, True)
    before = row(server, "texts")[1]["time"]
    code = text_serving.triton.repository / "swayed" / str(VERSION) / "model.py"
    right = code.read_text()
    try:
        change(text_serving, code, right.replace("mask * places", "mask * (places + 1)"))
        assert server.post("swayed", GOLDEN).status == 200, "a wrong answer has no other sign"
        rounds_find(server, False)
        status, told = row(server, "swayed")
        assert (status, told["state"], told["compared"]) == (503, "failed", True)
        assert told["reason"].startswith("the answer differs from the recorded one: its numbers by")
        assert "kettle" not in told["reason"]
        assert row(server, "texts")[0] == row(server, "vectors")[0] == 200
        wait_until(lambda: row(server, "texts")[1]["time"] > before, ROUND_S)
        assert server.ask("GET", "/health/ready").status == 200
        assert by_worker(server, "texts") == [1, 1]
    finally:
        change(text_serving, code, right)
    rounds_find(server, True)
    ends = [
        value
        for (name, _), value in figures(server).items()
        if name == "gateway_golden_round_timestamp_seconds"
    ]
    assert len(ends) == 2
    assert of(figures(server), "requests_total", endpoint="vectors", status="200") == 0


def change(text_serving: TextServing, code: Path, text: str) -> None:
    code.write_text(text)
    load(text_serving.triton, "swayed")
