"""docker/health.py, as Docker runs it: a process of its own, asking a real server."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.gateway.certificates import Authority, Pair

SCRIPT = Path(__file__).parent.parent / "docker" / "health.py"


class Answers(BaseHTTPRequestHandler):
    """/health/ready is well, everything else is not."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health/ready" else 503)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of a server, over TLS with a context."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def tls(pair: Pair, callers: Authority | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    if callers is not None:
        context.load_verify_locations(callers.cert)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def check(
    port: int, path: str = "/health/ready", *files: Path, **variables: Path | str
) -> tuple[int, str]:
    """Exit code and what Docker shows."""
    command = [sys.executable, str(SCRIPT), f"http://127.0.0.1:{port}{path}", *map(str, files)]
    named = {f"TRANSFORMER_SERVING_{name}": str(value) for name, value in variables.items()}
    done = subprocess.run(
        command, env={**os.environ, **named}, capture_output=True, text=True, check=False
    )
    assert not done.stderr
    return done.returncode, done.stdout


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_what_answers_200_is_well() -> None:
    with serving() as port:
        assert check(port) == (0, "")
        # As compose leaves a variable that is not set.
        assert check(port, TLS_CERT="") == (0, "")
        code, said = check(port, "/health/other")
        assert code == 1
        assert "503" in said
    assert check(port)[0] == 1


def test_no_proxy_of_the_environment_is_asked(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy's 127.0.0.1 is another machine's; here it is one where nobody listens."""
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving() as port:
        assert check(port) == (0, "")
    pair = authority.sign("serving")
    with serving(tls(pair)) as port:
        assert check(port, TLS_CERT=pair.cert) == (0, "")


def test_a_file_must_be_touched_of_late(tmp_path: Path) -> None:
    file = tmp_path / "controller.json"
    file.touch()
    with serving() as port:
        assert check(port, "/health/ready", file) == (0, "")
        for beat, of_it in ((1, "was last touched "), (0, "was never touched\n")):
            os.utime(file, (beat, beat))
            code, said = check(port, "/health/ready", file)
            assert code == 1
            assert of_it in said


def test_over_tls_whatever_the_certificate_is_named(authority: Authority) -> None:
    pair = authority.sign("serving", "192.0.2.7")
    with serving(tls(pair)) as port:
        assert check(port, TLS_CERT=pair.cert) == (0, "")
        assert check(port)[0] == 1


def test_where_callers_need_a_certificate_it_shows_its_own(authority: Authority) -> None:
    pair, own = authority.sign("serving"), authority.sign("health")
    with serving(tls(pair, callers=authority)) as port:
        shown = check(port, TLS_CERT=pair.cert, HEALTH_CERT=own.cert, HEALTH_KEY=own.key)
        assert shown == (0, "")
        assert check(port, TLS_CERT=pair.cert)[0] == 1
        nothing = authority.cert.with_name("health.crt")
        code, said = check(port, TLS_CERT=pair.cert, HEALTH_CERT=nothing, HEALTH_KEY=own.key)
    assert code == 1
    assert said.startswith(f"{nothing}, {own.key}: No such file")
