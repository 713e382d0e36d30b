"""When every worker behind an address gives the golden answer."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.responses import JSONResponse, Response

from tests.doctor.conftest import CLI
from tests.free_ports import free_port
from tests.stack.small_bundles import write_small
from transformer_serving.contract.errors import ServingError, unknown_endpoint
from transformer_serving.contract.manifest import Golden
from transformer_serving.contract.naming import VERSION_HEADER
from transformer_serving.desk import http
from transformer_serving.desk.deploy import golden as golden_module
from transformer_serving.desk.deploy.golden import (
    Differs,
    Refused,
    Reply,
    describe,
    wait_for_golden,
)
from transformer_serving.gateway import golden_rounds

GOLDEN = Golden(
    request={"text": "Good."}, answer={"label": "POSITIVE", "score": 0.9}, tolerance=0.001
)
VERSION = 7
PAUSE_S = golden_module._PAUSE_S


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden_module, "_PAUSE_S", 0.01)


@contextmanager
def address(
    status_and_version: Callable[[int], tuple[int, int]],
    health: Callable[[], tuple[int, object]] = lambda: (404, {"detail": "Not Found"}),
) -> Iterator[str]:
    """An address whose n-th request, counted from 0, gets the golden body from this version.

    Without `health` it is clearml-serving's own app.
    """
    numbers = iter(range(10_000))

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/health/endpoints/any"
            status, row = health()
            body = json.dumps(row).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

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


@pytest.mark.parametrize(
    ("base", "front"),
    [
        ("http://serve/serve", "http://serve"),
        ("https://serve:8443/serve", "https://serve:8443"),
        ("http://gpu.lan/serve/serve", "http://gpu.lan/serve"),
    ],
    ids=["host", "port", "prefix"],
)
def test_health_is_asked_of_the_same_host_whatever_that_is_called(
    base: str, front: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key goes along: of a host named serve it went to one named health."""
    asked: list[str] = []

    def ask(url: str, **_: object) -> None:
        asked.append(url)
        raise http.NoAnswer(OSError("nobody there"))

    monkeypatch.setattr(http, "ask", ask)
    assert golden_module._not_ready(f"{base}/texts/2", 1.0, {"x-api-key": "k"}) is None
    assert asked == [f"{front}/health/endpoints/texts/2"]


NOT_YET: dict[str, object] = {"state": "failed", "compared": False, "reason": "503 unavailable"}


@pytest.mark.parametrize(
    "not_yet",
    [
        (503, NOT_YET),
        (503, {"state": "not asked", "reason": "its first golden request is under way"}),
        (404, {"code": "unknown_endpoint", "message": "the endpoint is not known"}),
    ],
    ids=["loading", "first", "unknown"],
)
def test_an_endpoint_that_is_not_ready_is_not_asked(not_yet: tuple[int, object]) -> None:
    """Each request of deploy's counts: 97 answers of 503 before a first model was loaded paged."""
    looks: list[tuple[int, object]] = []
    asked_after: list[int] = []

    def health() -> tuple[int, object]:
        looks.append(not_yet)
        return not_yet if len(looks) < 5 else (200, {"state": "ok"})

    def worker(number: int) -> tuple[int, int]:
        asked_after.append(len(looks))
        return 200, VERSION

    with address(worker, health) as url:
        assert wait_for_golden(url, GOLDEN, VERSION, 60) is None
    assert asked_after == [5] * 32


def test_why_an_endpoint_is_not_ready_is_said() -> None:
    with address(lambda number: (200, VERSION), lambda: (503, NOT_YET)) as url:
        reason = wait_for_golden(url, GOLDEN, VERSION, 2)
    assert reason == "it is not ready: 503 unavailable"


def test_a_bundle_that_is_refused_before_it_is_ready_is_not_waited_for() -> None:
    with address(lambda number: (200, VERSION), lambda: (503, NOT_YET)) as url:
        reason = wait_for_golden(url, GOLDEN, VERSION, 600, lambda: "at 32 tokens, any batch")
    assert isinstance(reason, Refused)


@pytest.mark.parametrize(
    "reason", [f"no answer within {golden_rounds._TIMEOUT_S:g} s", "500 internal: reference 1"]
)
def test_an_endpoint_that_failed_for_its_worker_is_asked(reason: str) -> None:
    """A golden answer of 10 to 20 s is late for the worker, and was never waited for here."""
    row = {"state": "failed", "compared": False, "reason": reason}
    with address(lambda number: (200, VERSION), lambda: (503, row)) as url:
        assert wait_for_golden(url, GOLDEN, VERSION, 60) is None


def refusal(error: ServingError) -> Response:
    return JSONResponse(error.body(), error.kind.status)


@pytest.mark.parametrize(
    "answer",
    [
        refusal(ServingError("unavailable", "its engine is away")),
        refusal(unknown_endpoint()),
        Response(status_code=503),
        Response(status_code=400, headers={VERSION_HEADER: str(VERSION - 1)}),
    ],
    ids=["503", "404", "another's 503", "the bundle before"],
)
def test_what_the_gateway_says_of_an_engine_that_is_to_come_is_not_yet(answer: Response) -> None:
    endpoint = SimpleNamespace(bundle_version=VERSION, recorded=None)
    row = golden_rounds._judged("any", endpoint, answer).row()
    assert row["state"] == "failed"
    assert golden_module._means_not_yet(row), row


def test_an_endpoint_that_answers_its_golden_request_wrongly_is_asked() -> None:
    """Its answer is what deploy fails with, at once."""
    row = {"state": "failed", "compared": True, "reason": "its numbers by up to 0.2"}
    other = replace(GOLDEN, answer={"label": "POSITIVE", "score": 0.7})
    with address(lambda number: (200, VERSION), lambda: (503, row)) as url:
        assert isinstance(wait_for_golden(url, other, VERSION, 600), Differs)


def test_where_nobody_tells_readiness_ten_answers_of_503_are_not_soon_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Clearml-serving's own app has no health: ten in an hour may page."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    played = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(golden_module, "time", played)
    monkeypatch.setattr(golden_module, "_PAUSE_S", PAUSE_S)
    asked: list[float] = []

    def worker(number: int) -> tuple[int, int]:
        asked.append(now[0])
        return (503 if now[0] < 50 else 200), VERSION

    with address(worker) as url:
        assert wait_for_golden(url, GOLDEN, VERSION, 120) is None
    assert sum(at < 50 for at in asked) < 10
    assert max(asked) < 50 + 16


def test_a_status_says_of_which_bundle_it_is() -> None:
    body = {"message": "no text"}
    assert describe(Reply(400, body, 6), 7) == "status 400 from bundle version 6 still: no text"
    assert describe(Reply(400, body, 7), 7) == describe(Reply(400, body, None), 7)
    assert describe(Reply(400, body, 7), 7) == "status 400: no text"


def test_a_bundle_that_was_refused_is_not_waited_for() -> None:
    said = iter([None, None, "at 32 tokens, any batch"])
    with address(lambda number: (503, VERSION)) as url:
        reason = wait_for_golden(url, GOLDEN, VERSION, 600, lambda: next(said))
    assert isinstance(reason, Refused)
    assert reason == "at 32 tokens, any batch"


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "give --key or TRANSFORMER_SERVING_KEY"), (403, "the key may not ask this endpoint")],
)
def test_a_gateway_that_does_not_let_in_is_not_waited_for(status: int, said: str) -> None:
    with address(lambda number: (status, VERSION)) as url:
        reason = wait_for_golden(url, GOLDEN, VERSION, 600)
    assert isinstance(reason, Refused)
    assert said in reason


@pytest.mark.parametrize("status", [401, 403])
def test_nothing_is_changed_where_the_gateway_does_not_let_in(status: int, tmp_path: Path) -> None:
    """No ClearML server answers here: asking it for anything would fail otherwise."""
    write_small(tmp_path / "bundle")
    with address(lambda number: (status, VERSION)) as url:
        done = subprocess.run(
            [CLI, "deploy", "bundle", "--endpoint", "any"], cwd=tmp_path, capture_output=True,
            text=True, check=False, timeout=120,
            env={
                **os.environ, "CLEARML_API_HOST": "http://127.0.0.1:9",
                "CLEARML_API_ACCESS_KEY": "k", "CLEARML_API_SECRET_KEY": "s",
                "CLEARML_FILES_HOST": "http://127.0.0.1:9", "CLEARML_SERVING_TASK_ID": "0" * 32,
                "CLEARML_DEFAULT_BASE_SERVE_URL": url.removesuffix("/any"),
                "HOME": str(tmp_path), "TRANSFORMER_SERVING_KEY": "ts_secret",
            },
        )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert "--key" in done.stderr
    assert "ts_secret" not in done.stdout + done.stderr


def test_an_answer_that_the_deadline_cut_short_hides_no_reason() -> None:
    hang = threading.Event()

    def worker(number: int) -> tuple[int, int]:
        if number > 1:
            hang.wait(60)
        return 404, VERSION

    with address(worker) as url:
        reason = wait_for_golden(url, GOLDEN, VERSION, 3)
        hang.set()
    assert reason is not None
    assert "status 404" in reason


def test_an_answer_that_differs_is_told_at_once() -> None:
    """Of that version there will be no other answer; so one wrong answer of many is found."""
    other = replace(GOLDEN, answer={"label": "POSITIVE", "score": 0.7})
    with address(lambda number: (200, VERSION)) as url:
        reason = wait_for_golden(url, other, VERSION, 600)
    assert isinstance(reason, Differs)
    assert "its numbers by up to 0.2" in reason


def test_an_address_where_one_worker_never_gets_the_bundle_is_not_ready() -> None:
    with address(lambda number: (404 if number % 20 == 19 else 200, VERSION)) as url:
        reason = wait_for_golden(url, GOLDEN, VERSION, 2)
    assert reason is not None
    assert "status 404" in reason or "of the 32 answers" in reason


def test_why_nothing_answers_is_said() -> None:
    """Such as a certificate that is not trusted here."""
    reason = wait_for_golden(f"http://127.0.0.1:{free_port()}/serve/any", GOLDEN, VERSION, 0.5)
    assert reason is not None
    assert "nothing answers at its address: [Errno 111]" in reason
