"""Whom the desk shows the operator's ClearML token: a model's address may lead anywhere; and what
it says of a server that does not answer, or refuses."""

from __future__ import annotations

import http.server
import json
import os
import ssl
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.conftest import answering
from tests.free_ports import free_port
from tests.gateway.certificates import Authority
from tests.test_http import serving
from transformer_serving.contract.addresses import shown_address
from transformer_serving.desk.clearml_tools.api import ClearmlApi
from transformer_serving.desk.failure import Failure

Said = list[tuple[str, str | None]]
Start = Callable[[], tuple[str, Said]]


@contextmanager
def server() -> Iterator[tuple[str, Said]]:
    """Logs everybody in, and has every file; its address and who asked it for what with what."""
    said: Said = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said.append((self.path, self.headers.get("Authorization")))
            body = json.dumps({"data": {"token": "T"}}).encode()
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            return

    with serving(http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as listening:
        yield f"http://127.0.0.1:{listening.server_port}", said


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as running:
        yield lambda: running.enter_context(server())


@pytest.fixture
def api(start: Start) -> ClearmlApi:
    return ClearmlApi({
        "CLEARML_API_HOST": start()[0],
        "CLEARML_API_ACCESS_KEY": "key",
        "CLEARML_API_SECRET_KEY": "secret",
    })  # fmt: skip


def test_the_file_server_and_the_api_are_shown_it(start: Start, tmp_path: Path) -> None:
    (plane, of_plane), (files, of_files) = start(), start()
    api = ClearmlApi({"CLEARML_API_HOST": plane, "CLEARML_FILES_HOST": f"{files}/"})
    for place in (plane, files):
        api.download(f"{place}/a/model.zip", tmp_path / "file")
    assert of_plane[-1] == of_files[-1] == ("/a/model.zip", "Bearer T")


def test_nobody_else_is(api: ClearmlApi, start: Start, tmp_path: Path) -> None:
    elsewhere, said = start()
    api.download(f"{elsewhere}/a/model.zip", tmp_path / "file")
    assert said == [("/a/model.zip", None)]
    assert json.loads((tmp_path / "file").read_text())["data"]


@pytest.mark.parametrize("address", ["http://[1/x", "http://127.0.0.1:none/x"])
def test_an_address_that_is_none_is_refused(api: ClearmlApi, tmp_path: Path, address: str) -> None:
    with pytest.raises(Failure, match="no address of http"):
        api.download(address, tmp_path / "file")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("file:///nowhere/x.zip", "it is not there, or its store is none"),
        ("s3://bucket/x.zip", "Failed creating storage object s3://bucket Reason: Missing key"),
        ("s3://me:s3cret@bucket/x.zip?sig=s3cret", "Failed creating storage object s3://bucket "),
    ],
)
def test_what_the_sdk_does_not_get_is_told_in_its_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, why: str
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    api = ClearmlApi({"CLEARML_CONFIG_FILE": str(tmp_path / "none.conf")})
    named = shown_address(address)
    with pytest.raises(Failure, match=f"^{named} could not be fetched: {why}") as said:
        api.download(address, tmp_path / "file")
    assert "s3cret" not in str(said.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_got_is_named_with_the_host_that_was_asked(
    api: ClearmlApi, tmp_path: Path
) -> None:
    host = f"127.0.0.1:{free_port()}"
    with pytest.raises(Failure, match=f"^http://{host}/a@other/x.zip could not be fetched"):
        api.download(f"http://{host}/a@other/x.zip", tmp_path / "file")
    with pytest.raises(Failure, match=f"^http://{host}/x.zip could not be fetched") as said:
        api.download(f"http://user:s3cret@{host}/x.zip", tmp_path / "file")
    assert "s3cret" not in str(said.value)
    with pytest.raises(Failure, match=f"^http://{host}/x.zip could not be fetched") as said:
        api.download(f"http://{host}/x.zip?X-Amz-Signature=s3cret", tmp_path / "file")
    assert "s3cret" not in str(said.value)


def test_no_other_user_sees_an_address_in_a_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[list[str]] = []
    run = subprocess.run

    def ran(command: list[str], **options: Any) -> Any:
        lines.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", ran)
    stored = tmp_path / "m s3cret.zip"
    stored.write_bytes(b"a model")
    api = ClearmlApi({"CLEARML_CONFIG_FILE": str(tmp_path / "none.conf")})
    api.download(f"file://{stored}", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"a model"
    assert len(lines) == 1
    assert "s3cret" not in str(lines)


def test_a_server_whose_certificate_is_not_trusted_is_not_called_silent(tmp_path: Path) -> None:
    """It is waited for no more: no time changes that."""
    listening = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), http.server.BaseHTTPRequestHandler
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = Authority(tmp_path).sign("server")
    context.load_cert_chain(pair.cert, pair.key)
    listening.socket = context.wrap_socket(
        listening.socket, server_side=True, do_handshake_on_connect=False
    )
    with serving(listening):
        api = ClearmlApi({"CLEARML_API_HOST": f"https://127.0.0.1:{listening.server_port}"})
        with pytest.raises(Failure, match="is not trusted here: .*SSL_CERT_FILE, and for") as said:
            api.wait(2)
    assert "did not answer" not in str(said.value)


def test_why_no_server_answers_is_said() -> None:
    api = ClearmlApi({"CLEARML_API_HOST": f"http://127.0.0.1:{free_port()}"})
    with pytest.raises(Failure, match=r"did not answer within 0 s: .*[Cc]onnection refused; start"):
        api.wait(0)


WORDS = json.dumps({"meta": {"result_msg": "invalid task status:\n expected created" + "!" * 300}})


@pytest.mark.parametrize(
    ("sent", "said"),
    [(WORDS, "with 400: invalid task status: expected created!"), ("<", "with 400$")],
    ids=["said", "nothing said"],
)
def test_a_refusal_has_the_servers_words(sent: str, said: str) -> None:
    with answering(lambda path: (400, sent.encode(), {})) as address:
        with pytest.raises(Failure, match=said) as refused:
            ClearmlApi({"CLEARML_API_HOST": address}).call("tasks.edit")
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "sent", [b"[]", b"null", b"{}", b'{"data": []}', b"<!DOCTYPE html>", b"\xff"]
)
@pytest.mark.parametrize("logged_in", [True, False])
def test_what_is_no_answer_of_the_api_is_said_with_the_fix(sent: bytes, logged_in: bool) -> None:
    token = json.dumps({"data": {"token": "T"}}).encode()

    def reply(path: str) -> tuple[int, bytes, dict[str, str]]:
        return 200, token if logged_in and path == "/auth.login" else sent, {}

    with answering(reply) as address, pytest.raises(Failure) as said:
        ClearmlApi({"CLEARML_API_HOST": address}).call("tasks.edit")
    method = "tasks.edit" if logged_in else "auth.login"
    assert str(said.value) == (
        f"{method}: {address} does not answer as the ClearML API; set CLEARML_API_HOST to the API "
        "server: port 8008 or api.HOST, not the web server (8080, app.)"
    )
