"""desk/http.py against real servers: every status is an answer, and every silence is NoAnswer."""

from __future__ import annotations

import http.server
import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.proxies import proxy_of_the_environment
from transformer_serving.desk.failure import Failure
from transformer_serving.desk.http import (
    LOGIN,
    NoAnswer,
    ask,
    ask_at,
    key_header,
    opened,
    shown,
)

WAIT_S = 20.0


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers /STATUS with it and what it was asked; /cut ends early, /noise is no HTTP."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/noise":
            self.wfile.write(b"SSH-2.0\r\n")
            return
        said = {"method": self.command, "body": body.decode(), "mark": self.headers.get("X-Mark")}
        text = json.dumps(said).encode()
        self.send_response(200 if self.path == "/cut" else int(self.path[1:]))
        self.send_header("Content-Length", str(len(text) + (self.path == "/cut")))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        return

    def address_string(self) -> str:
        return "anybody"


class OnSocket(socketserver.ThreadingUnixStreamServer):
    """http.server's over a unix socket."""

    server_name, server_port = "localhost", 0


@pytest.fixture(scope="module")
def port() -> Iterator[str]:
    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)) as server:
        yield f"127.0.0.1:{server.server_address[1]}"


@pytest.fixture(scope="module")
def unix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("echo") / "socket"
    with serving(OnSocket(str(path), Echo)):
        yield f"unix:{path}"


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(params=["port", "unix"])
def address(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def url(port: str) -> str:
    return f"http://{port}"


@pytest.mark.parametrize("status", [200, 203, 404, 422, 503])
def test_every_status_is_an_answer(address: str, status: int) -> None:
    answer = ask_at(address, f"/{status}", method="POST", timeout_s=WAIT_S)
    assert (answer.status, json.loads(answer.body)["method"]) == (status, "POST")
    assert answer.headers["content-LENGTH"] == str(len(answer.body))


@pytest.mark.parametrize("path", ["/cut", "/noise"])
def test_what_breaks_off_is_no_answer(address: str, path: str) -> None:
    with pytest.raises(NoAnswer):
        ask_at(address, path, timeout_s=WAIT_S)


@pytest.mark.parametrize("status", [200, 203, 404, 422, 503])
def test_every_status_of_a_url_is_an_answer(url: str, status: int) -> None:
    answer = ask(f"{url}/{status}", b"b", {"X-Mark": "m"}, timeout_s=WAIT_S)
    assert answer.status == status
    assert json.loads(answer.body) == {"method": "POST", "body": "b", "mark": "m"}
    assert ask(f"{url}/{status}", timeout_s=WAIT_S, most=9).body == b'{"method"'
    with opened(f"{url}/{status}", timeout_s=WAIT_S) as unread:
        assert unread.status == status
        assert json.loads(unread.read())["method"] == "GET"


def test_a_key_is_not_sent_to_where_an_answer_points(url: str) -> None:
    seen: list[dict[str, str | None]] = []
    headers = {**key_header("ts_key"), "Authorization": "Bearer b", "x-mark": "m"}

    class Pointer(Echo):
        def do_GET(self) -> None:
            seen.append({name: self.headers.get(name) for name in headers})
            self.send_response(302)
            self.send_header("Location", "/away" if self.path == "/" else f"{url}/200")
            self.send_header("Content-Length", "0")
            self.end_headers()

    pointer = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pointer)
    with serving(pointer):
        first = f"http://127.0.0.1:{pointer.server_address[1]}/"
        assert ask(first, headers=headers, timeout_s=WAIT_S).status == 200
    assert seen == [headers, {"x-api-key": None, "Authorization": None, "x-mark": "m"}]


@pytest.mark.parametrize("key", ["x y", "a\nb", "a\r\nHost: b", "\u00e4", "a\0", " "])
def test_what_is_no_key_is_not_sent(key: str) -> None:
    with pytest.raises(Failure, match="TRANSFORMER_SERVING_KEY") as caught:
        key_header(key)
    assert key == " " or key not in str(caught.value)
    assert key_header(None) == key_header("") == {}


@pytest.mark.parametrize("path", ["/cut", "/noise"])
def test_a_url_that_breaks_off_is_no_answer(url: str, path: str) -> None:
    with pytest.raises(NoAnswer):
        ask(f"{url}{path}", timeout_s=WAIT_S)


@pytest.mark.parametrize("url", ["", "nothing", "http://", "http://127.0.0.1:none", "http://[1"])
def test_a_url_that_is_none_is_no_answer(url: str) -> None:
    with pytest.raises(NoAnswer):
        ask(url, timeout_s=WAIT_S)


@pytest.mark.parametrize("address", ["127.0.0.1:8000/", "127.0.0.1:none", "a:1,b:2"])
def test_an_address_that_is_none_is_no_answer(address: str) -> None:
    with pytest.raises(NoAnswer):
        ask_at(address, "/", timeout_s=WAIT_S)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("https://api.example:8008", "https://api.example:8008"),
        ("http://user:s3cret@host:9/serve", "http://host:9/serve"),
        ("https://token@host", "https://host"),
        ("user:s3cret@host:9", "host:9"),
        ("http://user:p/a?s#s@w@host", "http://host"),
    ],
)
def test_an_address_is_shown_without_its_password(address: str, said: str) -> None:
    assert shown(address) == said


def test_a_password_of_an_address_is_not_sent_and_not_repeated() -> None:
    with pytest.raises(NoAnswer) as silence:
        ask("http://user:s3cret@127.0.0.1", timeout_s=WAIT_S)
    assert LOGIN in str(silence.value)
    assert "s3cret" not in repr((silence.value, silence.value.cause))


def test_silence_says_its_cause(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer) as away:
        ask_at(f"unix:{tmp_path}/nobody", "/")
    assert isinstance(away.value.cause, FileNotFoundError)
    with pytest.raises(NoAnswer) as unresolved:
        ask("http://no-such-host.invalid", timeout_s=WAIT_S)
    assert isinstance(unresolved.value.cause, socket.gaierror)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        host, number = mute.getsockname()
        place = f"{host}:{number}"
        with pytest.raises(NoAnswer) as late:
            ask(f"http://{place}", timeout_s=0.05)
        with pytest.raises(NoAnswer) as late_at:
            ask_at(place, "/", timeout_s=0.05)
    assert isinstance(late.value.cause, TimeoutError)
    assert isinstance(late_at.value.cause, TimeoutError)
    with pytest.raises(NoAnswer) as refused:
        ask(f"http://{place}", timeout_s=WAIT_S)
    assert isinstance(refused.value.cause, ConnectionRefusedError)


def test_what_listens_here_is_asked_without_a_proxy(
    url: str, port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = taken.getsockname()[1]
    # urllib looks for proxies once a process.
    monkeypatch.setattr("urllib.request._opener", None)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{nobody}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert ask_at(port, "/200", timeout_s=WAIT_S).status == 200
    for here in (url, url.replace("127.0.0.1", "localhost")):
        assert ask(f"{here}/200", timeout_s=WAIT_S).status == 200


@pytest.mark.parametrize("elsewhere", ["http://host.invalid/", "http://127.0.0.1.invalid/"])
def test_another_machine_is_asked_through_the_proxy(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy_of_the_environment(monkeypatch) as came:
        with pytest.raises(NoAnswer):
            ask(elsewhere, timeout_s=WAIT_S)
        assert came[0].startswith(f"GET {elsewhere}".encode())
