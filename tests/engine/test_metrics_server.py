"""Who is told the controller's figures, by the keys of a file."""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from transformer_serving.contract import known_keys
from transformer_serving.contract.keys import VARIABLE, Key, digest_of, keys_text, new_key, now
from transformer_serving.contract.replacement import replace_file
from transformer_serving.engine.controller import metrics_server
from transformer_serving.engine.controller.metrics_server import keys_of, serve_metrics

FIGURES, CALLER = new_key(), new_key()
ROWS = [Key("figures", digest_of(FIGURES), now(), metrics=True), Key("a", digest_of(CALLER), now())]
PAGE = "transformer_serving_engine_triton_ready 1\n"


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "_LOOK_EVERY_S", 0.0)


@contextlib.contextmanager
def serving(
    environment: Mapping[str, str], page: Callable[[], str] = lambda: PAGE
) -> Iterator[int]:
    server = serve_metrics("127.0.0.1:0", page, keys_of(environment))
    assert server is not None
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def ask(port: int, path: str = "/metrics", **headers: str) -> tuple[int, str, str | None]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(
            "GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.getheader("www-authenticate")
    finally:
        connection.close()


def test_without_keys_everybody_is_told() -> None:
    for environment in ({}, {VARIABLE: ""}):
        with serving(environment) as port:
            assert ask(port) == (200, PAGE, None)


def test_with_keys_only_one_for_metrics_opens_it(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(keys_text(ROWS))
    with serving({VARIABLE: str(path)}) as port:
        assert ask(port, authorization=f"Bearer {FIGURES}")[:2] == (200, PAGE)
        assert ask(port, x_api_key=FIGURES)[:2] == (200, PAGE)
        status, body, challenge = ask(port)
        assert (status, challenge) == (401, "Bearer")
        assert '"unauthorized"' in body
        assert ask(port, x_api_key=new_key())[0] == 401
        assert ask(port, "/other")[0] == 401
        assert ask(port, x_api_key="k\xe9y" + FIGURES)[0] == 401
        status, body, _ = ask(port, x_api_key=CALLER)
        assert status == 403
        assert '"forbidden"' in body
        assert ask(port, "/other", x_api_key=FIGURES)[0] == 404


def test_the_file_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that is not there, or wrong, when the controller starts: nobody gets in before."""
    path = tmp_path / "keys.json"
    with serving({VARIABLE: str(path)}) as port:
        assert ask(port, x_api_key=FIGURES)[0] == 401
        path.write_text("{")
        assert ask(port, x_api_key=FIGURES)[0] == 401
        assert "the keys are as they were before" in caplog.text
        replace_file(path, keys_text(ROWS))
        assert ask(port, x_api_key=FIGURES)[0] == 200
        replace_file(path, keys_text(ROWS[1:]))
        assert ask(port, x_api_key=FIGURES)[0] == 401


def noted_in(pages: list[str]) -> Callable[[], str]:
    def page() -> str:
        pages.append(PAGE)
        return PAGE

    return page


BEGUN = b"GET /metrics HTTP/1.1\r\nx: "


def is_ended(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        return connection.recv(1) == b""
    return True


def test_who_drips_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nor more threads than a few: each further one ends the oldest, for whom no page is made."""
    monkeypatch.setattr(metrics_server, "_CLIENT_S", 3600.0)
    pages: list[str] = []
    begun: list[int] = []
    begin = metrics_server._Server.process_request

    def counted(server: metrics_server._Server, request: Any, address: Any) -> None:
        begun.append(len(server._open))
        begin(server, request, address)

    monkeypatch.setattr(metrics_server._Server, "process_request", counted)
    with (
        serving({}, noted_in(pages)) as port,
        contextlib.ExitStack() as stack,
    ):
        dripping = []
        for number in range(60):
            one = socket.create_connection(("127.0.0.1", port), timeout=60)
            dripping.append(stack.enter_context(one))
            # Some have not sent their first line.
            one.sendall(BEGUN if number % 2 else BEGUN[:8])
        assert ask(port) == (200, PAGE, None)
        # One of the rest has made room for the one that asked.
        assert all(is_ended(one) for one in dripping[: 60 - 15])
        for number, one in enumerate(dripping[-15:], 60 - 15):
            one.sendall(b"a\r\n\r\n" if number % 2 else BEGUN[8:] + b"a\r\n\r\n")
            assert one.recv(12) == b"HTTP/1.0 200"
    assert len(pages) == 1 + 15
    assert max(begun) == 16
    assert "Traceback" not in capfd.readouterr().err


def test_who_has_asked_and_was_ended_gets_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its head may have come whole just as it was ended."""
    pages: list[str] = []
    asked = metrics_server._Server.has_asked

    def ended_before(server: metrics_server._Server, connection: socket.socket) -> bool:
        monkeypatch.undo()
        with server._changes:
            del server._asking[connection]
        return asked(server, connection)

    monkeypatch.setattr(metrics_server._Server, "has_asked", ended_before)
    with (
        serving({}, noted_in(pages)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as one,
    ):
        one.sendall(BEGUN + b"a\r\n\r\n")
        assert is_ended(one)
        assert pages == []
        assert ask(port) == (200, PAGE, None)


def test_a_head_has_one_time_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a byte of it comes."""
    monkeypatch.setattr(metrics_server, "_CLIENT_S", 1.0)
    with (
        serving({}) as port,
        socket.create_connection(("127.0.0.1", port), timeout=0.05) as dripping,
    ):
        dripping.sendall(BEGUN)
        late, ended = time.monotonic() + 60, False
        while not ended and time.monotonic() < late:
            with contextlib.suppress(TimeoutError):
                ended = is_ended(dripping)
            with contextlib.suppress(ConnectionError):
                dripping.sendall(b"a")
        assert ended
        assert ask(port) == (200, PAGE, None)


def test_who_leaves_under_an_answer_is_no_fault(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where the answer is a refusal of http.server's own."""
    with serving({}) as port:
        for head in (b"POST / HTTP/1.1\r\n\r\n", BEGUN + b"a\r\n\r\n"):
            one = socket.create_connection(("127.0.0.1", port), timeout=60)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.sendall(head)
            one.close()
        assert ask(port) == (200, PAGE, None)
    assert "Traceback" not in capfd.readouterr().err


def test_who_has_left_is_not_told_as_a_fault(capfd: pytest.CaptureFixture[str]) -> None:
    server = serve_metrics("127.0.0.1:0", lambda: PAGE, None)
    assert server is not None
    try:
        for error, is_told in ((ConnectionResetError(), False), (ValueError("ours"), True)):
            try:
                raise error
            except Exception:
                server.handle_error(server.socket, ("127.0.0.1", 1))
            assert ("Traceback" in capfd.readouterr().err) is is_told
    finally:
        server.shutdown()
        server.server_close()
