"""When an answer is the golden one, and when every worker behind an address gives it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from contract.manifest import Golden
from contract.naming import VERSION_HEADER
from transformer_serving.golden import agrees, wait_for_golden

ROWS = [{"token": 4, "score": 0.5}, {"token": 9, "score": 0.4999}, {"token": 2, "score": 0.1}]


@pytest.mark.parametrize(
    ("answer", "agreed"),
    [
        (ROWS, True),
        ([ROWS[1], ROWS[0], ROWS[2]], True),
        ([ROWS[0], ROWS[0], ROWS[2]], False),
        (ROWS[:2], False),
        ([{**ROWS[0], "score": 0.52}, *ROWS[1:]], False),
        ([{**ROWS[0], "token": 5}, *ROWS[1:]], False),
        ([{**ROWS[0], "score": float("nan")}, *ROWS[1:]], False),
        ({"token": 4}, False),
    ],
)
def test_rows_of_scores_agree_in_any_order(answer: Any, agreed: bool) -> None:
    assert agrees(answer, ROWS, 0.001) is agreed


def test_vectors_keep_their_order_and_large_numbers_a_relative_tolerance() -> None:
    assert agrees([[1.0, 200.0]], [[1.0, 200.1]], 0.001)
    assert not agrees([[1.0, 200.0]], [[1.01, 200.0]], 0.001)
    assert not agrees([1.0, 2.0], [2.0, 1.0], 0.001)


GOLDEN = Golden(
    request={"text": "Good."}, answer={"label": "POSITIVE", "score": 0.9}, tolerance=0.001
)
VERSION = 7


@contextmanager
def address(status_and_version: Callable[[int], tuple[int, int]]) -> Iterator[str]:
    """An address whose n-th request, counted from 0, gets the golden body from this version."""
    numbers = iter(range(10_000))

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, version = status_and_version(next(numbers))
            self.rfile.read(int(self.headers["content-length"]))
            body = json.dumps(GOLDEN.answer).encode()
            self.send_response(status)
            self.send_header(VERSION_HEADER, str(version))
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/serve/any"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("late", [(404, VERSION), (200, VERSION - 1)])
def test_an_address_is_ready_when_its_last_worker_has_the_bundle(late: tuple[int, int]) -> None:
    """Three workers in turn; the third has the bundle only after 24 requests."""
    asked: list[int] = []

    def worker(number: int) -> tuple[int, int]:
        asked.append(number)
        return late if number % 3 == 2 and number < 24 else (200, VERSION)

    with address(worker) as url:
        assert wait_for_golden(url, GOLDEN, VERSION, 60) is None
    assert len(asked) == 24 + 32


def test_an_address_where_one_worker_never_gets_the_bundle_is_not_ready() -> None:
    with address(lambda number: (404 if number % 20 == 19 else 200, VERSION)) as url:
        reason = wait_for_golden(url, GOLDEN, VERSION, 2)
    assert reason is not None
    assert "status 404" in reason or "of the 32 answers" in reason
